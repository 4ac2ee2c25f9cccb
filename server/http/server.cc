#include "server/http/server.h"

#include <pthread.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "server/http/acceptor.h"
#include "server/http/connection.h"
#include "server/http/core.h"

namespace spillway {
namespace {

namespace asio = boost::asio;

void name_thread(asio::thread_pool& pool, const char* name) {
  asio::post(pool, [name] { pthread_setname_np(pthread_self(), name); });
}

}  // namespace

struct HttpServer::Parts {
  Parts(const HttpLimits& limits, Router router, RequestObserver observer)
      : core(std::make_shared<HttpCore>(limits, std::move(router), std::move(observer))) {}

  Status listen(HttpListener listener);
  void take_in(int fd, int family, const std::string& client);

  std::shared_ptr<HttpCore> core;
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::vector<SocketFile> files;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      core->io->get_executor()};
  std::vector<std::string> urls;
  uint16_t port = 0;
  std::thread thread;
  bool stopped = false;
};

Status HttpServer::Parts::listen(HttpListener listener) {
  urls.push_back(listener.url());
  if (port == 0) port = listener.port();
  SPILLWAY_ASSIGN_OR_RETURN(const int fd, listener.listen());
  files.push_back(listener.take_file());
  acceptors.push_back(std::make_unique<Acceptor>(
      *core->io, fd, [this](int socket, int family, const std::string& client) {
        take_in(socket, family, client);
      }));
  acceptors.back()->start();
  return {};
}

void HttpServer::Parts::take_in(int fd, int family, const std::string& client) {
  const std::optional<IpAddress> ip = IpAddress::parse(client);
  auto peer = core->peer_use(ip ? ip->client_key() : client);
  const HttpLimits& limits = core->limits;
  const auto open = static_cast<int64_t>(core->connections.size()) - core->turned_away;
  // A trusted proxy's connections are counted for its clients, when they have sent a head.
  const bool full =
      open >= limits.connections_max ||
      (peer->connections >= limits.connections_per_peer_max && !limits.trusted_proxies.trust(ip));
  if (full && core->turned_away >= limits.turned_away_max) {
    ::close(fd);  // No memory is set aside for more refusals.
    return;
  }
  auto connection = std::make_shared<Connection>(core, fd, family, ip, std::move(peer));
  full ? connection->turn_away() : connection->start();
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  stop();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& host, uint16_t port,
                                                      const HttpLimits& limits, Router router,
                                                      RequestObserver observer) {
  SPILLWAY_ASSIGN_OR_RETURN(HttpListener listener, HttpListener::bind(host, port));
  return start(std::move(listener), limits, std::move(router), std::move(observer));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpListener listener,
                                                      const HttpLimits& limits, Router router,
                                                      RequestObserver observer) {
  std::vector<HttpListener> listeners;
  listeners.push_back(std::move(listener));
  return start(std::move(listeners), limits, std::move(router), std::move(observer));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(std::vector<HttpListener> listeners,
                                                      const HttpLimits& limits, Router router,
                                                      RequestObserver observer) {
  auto parts = std::make_unique<Parts>(limits, std::move(router), std::move(observer));
  for (HttpListener& listener : listeners) {
    SPILLWAY_RETURN_IF_ERROR(parts->listen(std::move(listener)));
  }
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
  return parts_->urls.front();
}

const std::vector<std::string>& HttpServer::urls() const {
  return parts_->urls;
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
    for (const auto& acceptor : parts->acceptors) acceptor->close();
    parts->files.clear();  // Nobody is to find a socket that nobody listens at.
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
  parts->core->drop_work();
}

}  // namespace spillway
