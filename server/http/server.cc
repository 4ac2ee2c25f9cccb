#include "server/http/server.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
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

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpLimits& limits, Router router)
      : core(std::make_shared<HttpCore>(limits, std::move(router))) {}

  Status listen(const std::string& host, uint16_t port);
  void accept();
  void on_accept(const error_code& ec, tcp::socket socket);
  void close_acceptor() {
    error_code ignored;
    acceptor.close(ignored);
  }

  std::shared_ptr<HttpCore> core;
  tcp::acceptor acceptor{*core->io};
  asio::steady_timer pause{*core->io};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      core->io->get_executor()};
  std::string host_text;
  uint16_t port = 0;
  std::thread thread;
  bool stopped = false;
};

Status HttpServer::Parts::listen(const std::string& host, uint16_t wanted) {
  const std::string where = host + ":" + std::to_string(wanted);
  error_code ec;
  tcp::resolver resolver(*core->io);
  const auto found = resolver.resolve(host, std::to_string(wanted), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return invalid_argument("--host " + host + ": " + ec.message());
  }
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(4096, ec);
  if (ec) {
    return {Code::kIoError, "listen on " + where + ": " + ec.message() + "; choose another --port"};
  }
  port = acceptor.local_endpoint(ec).port();
  host_text = endpoint.address().is_v6() ? "[" + endpoint.address().to_string() + "]"
                                         : endpoint.address().to_string();
  return {};
}

void HttpServer::Parts::accept() {
  acceptor.async_accept(
      [this](const error_code& ec, tcp::socket socket) { on_accept(ec, std::move(socket)); });
}

void HttpServer::Parts::on_accept(const error_code& ec, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (ec) {
    // Out of file descriptors: trying again at once would only spin.
    pause.expires_after(std::chrono::milliseconds(100));
    pause.async_wait([this](const error_code& cancelled) {
      if (!cancelled && acceptor.is_open()) accept();
    });
    return;
  }
  error_code peer_error;
  const auto address = socket.remote_endpoint(peer_error).address();
  const std::string peer = address.to_string();
  const auto known = core->per_peer.find(peer);
  const bool full =
      static_cast<int64_t>(core->connections.size()) >= core->limits.connections_max ||
      (known != core->per_peer.end() && known->second >= core->limits.connections_per_peer_max);
  const int fd = peer_error || full ? -1 : socket.release(peer_error);
  if (fd >= 0 && !peer_error) {
    std::make_shared<Connection>(core, fd, address.is_v6(), peer)->start();
  }  // Else the socket closes here: there is no memory set aside for a farewell.
  accept();
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  stop();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& host, uint16_t port,
                                                      const HttpLimits& limits, Router router) {
  auto parts = std::make_unique<Parts>(limits, std::move(router));
  SPILLWAY_RETURN_IF_ERROR(parts->listen(host, port));
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
  parts->core->post_work([] { pthread_setname_np(pthread_self(), "spillway-api"); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

uint16_t HttpServer::port() const {
  return parts_->port;
}

std::string HttpServer::url() const {
  return "http://" + parts_->host_text + ":" + std::to_string(parts_->port);
}

void HttpServer::begin_drain() {
  Parts* parts = parts_.get();
  parts->core->draining = true;
  parts->core->post([parts] {
    parts->close_acceptor();
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
  parts->core->workers->join();  // Its tasks may still post answers, which go nowhere.
  {
    const std::lock_guard lock(parts->core->mutex);
    parts->core->stopped = true;
  }
  parts->work.reset();  // The network thread ends when its last handler has run.
  parts->thread.join();
}

}  // namespace spillway
