// What all connections of one HTTP server share. Includes Boost.Asio: only the server's own .cc
// files (server, connection, exchange) include this.
//
// Thread rule: the network thread, except where a member says otherwise. Shared ownership: the core
// lives until the last connection, and so the last exchange that someone holds, is gone.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/http/limits.h"
#include "server/http/router.h"

namespace spillway {

class Connection;

struct HttpCore {
  HttpCore(const HttpLimits& given, Router routes) : limits(given), router(std::move(routes)) {}

  const HttpLimits limits;
  const Router router;
  boost::asio::io_context io{1};
  boost::asio::thread_pool workers{1};

  std::array<char, size_t{64} << 10> scratch{};  // Idle connections need no buffer of their own
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  std::map<std::string, int64_t> per_peer;

  std::atomic<bool> draining{false};
  // Bytes of bodies that are read or held; taken on the network thread, given back on any.
  std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);

  // Any thread: queues a task for the network thread, unless the server has stopped.
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    if (!stopped) boost::asio::post(io, std::move(task));
  }

  std::mutex mutex;  // For the rest
  std::condition_variable quiet;
  int64_t busy = 0;  // Connections with an answer that is not written out
  bool stopped = false;

  void add_busy(int64_t change) {
    const std::lock_guard lock(mutex);
    busy += change;
    if (busy == 0) quiet.notify_all();
  }
};

}  // namespace spillway
