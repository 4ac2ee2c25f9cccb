// What all connections of one HTTP server share; only the server's own .cc files include this.
//
// Thread rule: the network thread, except where a member says otherwise. Shared ownership: the core
// lives until the last connection, and so the last exchange that someone holds, is gone.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/http/limits.h"
#include "server/http/router.h"

namespace boost::asio {
class io_context;
class thread_pool;
}  // namespace boost::asio

namespace spillway {

class Connection;

// What one client address has taken. Its connections are the network thread's; the bytes any's.
struct PeerUse {
  uint64_t number = 0;  // Of the address while anything of it is there; never 0 nor used again
  int64_t connections = 0;
  std::atomic<size_t> body_bytes{0};
};

struct HttpCore {
  HttpCore(const HttpLimits& given, Router routes);
  ~HttpCore();

  const HttpLimits limits;
  const Router router;
  const std::unique_ptr<boost::asio::io_context> io;
  // One thread each: RequestMemory counts two bodies that are parsed at once.
  const std::unique_ptr<boost::asio::thread_pool> worker;
  const std::unique_ptr<boost::asio::thread_pool> bulk;

  std::array<char, size_t{64} << 10> scratch{};  // Idle connections need no buffer of their own
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  int64_t turned_away = 0;  // Of those: only told that there are too many
  std::unordered_map<std::string, std::weak_ptr<PeerUse>> peers;
  uint64_t last_peer = 0;

  std::atomic<bool> draining{false};
  // Bytes of bodies that are read or held; taken on the network thread, given back on any.
  std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);

  // What the client at `address` has taken; lives as long as its connections and bodies.
  std::shared_ptr<PeerUse> peer_use(const std::string& address);
  // The most bytes of bodies that one client may hold.
  size_t peer_body_bytes_max() const;

  // Any thread: queues a task for the network thread, unless the server has stopped.
  void post(std::function<void()> task);
  // Any thread: for the worker thread, and for one that takes bulk work only, so that a flood of
  // long texts to tokenise holds up nobody's completion.
  void post_work(std::function<void()> task);
  void post_bulk_work(std::function<void()> task);
  // The network thread's answers that are not written out changed by so many.
  void add_busy(int64_t change);

  std::mutex mutex;  // For the rest
  std::condition_variable quiet;
  int64_t busy = 0;  // Connections with an answer that is not written out
  bool stopped = false;
};

}  // namespace spillway
