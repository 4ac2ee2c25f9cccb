#include "server/http/server.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "server/http/connection.h"
#include "server/http/core.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

IpAddress ip_of(const asio::ip::address& address) {
  return IpAddress::parse(address.to_string()).value_or(IpAddress());
}

void name_thread(asio::thread_pool& pool, const char* name) {
  asio::post(pool, [name] { pthread_setname_np(pthread_self(), name); });
}

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpLimits& limits, Router router)
      : core(std::make_shared<HttpCore>(limits, std::move(router))) {}

  Status listen(HttpListener listener);
  void accept();
  void on_accept(const error_code& ec, tcp::socket socket);
  void take_in(int fd, const asio::ip::address& address);
  void close_acceptor() {
    error_code ignored;
    acceptor.close(ignored);
  }

  std::shared_ptr<HttpCore> core;
  tcp::acceptor acceptor{*core->io};
  asio::steady_timer pause{*core->io};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      core->io->get_executor()};
  std::string url;
  uint16_t port = 0;
  std::thread thread;
  bool stopped = false;
};

Status HttpServer::Parts::listen(HttpListener listener) {
  url = listener.url();
  port = listener.port();
  SPILLWAY_ASSIGN_OR_RETURN(const int fd, listener.listen());
  error_code ec;
  acceptor.assign(listener.ipv6() ? tcp::v6() : tcp::v4(), fd, ec);
  if (!ec) return {};
  ::close(fd);
  return {Code::kIoError, "listen on " + url + ": " + ec.message()};
}

void HttpServer::Parts::accept() {
  acceptor.async_accept(
      [this](const error_code& ec, tcp::socket socket) { on_accept(ec, std::move(socket)); });
}

void HttpServer::Parts::on_accept(const error_code& ec, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (ec) {
    // Out of file descriptors: retrying at once would only spin.
    pause.expires_after(std::chrono::milliseconds(100));
    pause.async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor.is_open()) accept();
    });
    return;
  }
  error_code peer_error;
  const auto address = socket.remote_endpoint(peer_error).address();
  const int fd = peer_error ? -1 : socket.release(peer_error);
  if (fd >= 0 && !peer_error) take_in(fd, address);  // Otherwise it has left already.
  accept();
}

void HttpServer::Parts::take_in(int fd, const asio::ip::address& address) {
  const IpAddress ip = ip_of(address);
  auto peer = core->peer_use(ip.client_key());
  const HttpLimits& limits = core->limits;
  const auto open = static_cast<int64_t>(core->connections.size()) - core->turned_away;
  // A trusted proxy's connections are counted for its clients, when they have sent a head.
  const bool full = open >= limits.connections_max ||
                    (peer->connections >= limits.connections_per_peer_max &&
                     !any_contains(limits.trusted_proxies, ip));
  if (full && core->turned_away >= limits.turned_away_max) {
    ::close(fd);  // No memory is set aside for more refusals.
    return;
  }
  auto connection = std::make_shared<Connection>(core, fd, address.is_v6(), ip, std::move(peer));
  full ? connection->turn_away() : connection->start();
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  stop();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& host, uint16_t port,
                                                      const HttpLimits& limits, Router router) {
  SPILLWAY_ASSIGN_OR_RETURN(HttpListener listener, HttpListener::bind(host, port));
  return start(std::move(listener), limits, std::move(router));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpListener listener,
                                                      const HttpLimits& limits, Router router) {
  auto parts = std::make_unique<Parts>(limits, std::move(router));
  SPILLWAY_RETURN_IF_ERROR(parts->listen(std::move(listener)));
  parts->accept();
  parts->thread = std::thread([core = parts->core] {
    pthread_setname_np(pthread_self(), "spillway-net");
    while (true) {
      try {
        core->io->run();
        return;
      } catch (const std::exception&) {
        // Out of memory in one connection's handler; its deadline closes it, the others go on.
      }
    }
  });
  name_thread(*parts->core->worker, "spillway-api");
  name_thread(*parts->core->bulk, "spillway-bulk");
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

void HttpServer::serve(const HttpLimits& limits, Router router) {
  std::promise<void> done;
  parts_->core->post([&, core = parts_->core.get()] {
    core->limits = limits;
    core->router = std::make_shared<const Router>(std::move(router));
    done.set_value();
  });
  done.get_future().wait();
}

uint16_t HttpServer::port() const {
  return parts_->port;
}

std::string HttpServer::url() const {
  return parts_->url;
}

void HttpServer::begin_drain() {
  Parts* parts = parts_.get();
  parts->core->draining = true;
  parts->core->post([parts] {
    std::vector<std::shared_ptr<Connection>> open;
    for (const auto& [key, weak] : parts->core->connections) {
      if (auto connection = weak.lock()) open.push_back(std::move(connection));
    }
    for (const auto& connection : open) connection->close_when_idle();
  });
}

bool HttpServer::draining() const {
  return parts_->core->draining;
}

bool HttpServer::wait_quiet(double seconds) {
  std::unique_lock lock(parts_->core->mutex);
  return parts_->core->quiet.wait_for(lock, std::chrono::duration<double>(seconds),
                                      [this] { return parts_->core->busy == 0; });
}

void HttpServer::stop() {
  if (parts_->stopped) return;
  parts_->stopped = true;
  Parts* parts = parts_.get();
  parts->core->draining = true;
  parts->core->post([parts] {
    parts->close_acceptor();
    parts->pause.cancel();
    while (!parts->core->connections.empty()) {
      const auto connection = parts->core->connections.begin()->second.lock();
      if (connection == nullptr) {
        parts->core->connections.erase(parts->core->connections.begin());
      } else {
        connection->shut();
      }
    }
  });
  parts->core->bulk->join();
  parts->core->worker->join();  // Their tasks may still post answers, which are dropped.
  {
    const std::lock_guard lock(parts->core->mutex);
    parts->core->stopped = true;
  }
  parts->work.reset();  // The network thread ends when its last handler has run.
  parts->thread.join();
}

}  // namespace spillway
