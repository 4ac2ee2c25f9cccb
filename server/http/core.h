// State shared by all connections of one HTTP server; only the server's own .cc files include this.
//
// Thread rule: the network thread, except where a member says otherwise. Shared ownership: the core
// lives until the last connection, and so the last exchange, is gone.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/http/limits.h"
#include "server/http/peers.h"
#include "server/http/request_record.h"
#include "server/http/router.h"

namespace boost::asio {
class io_context;
class thread_pool;
}  // namespace boost::asio

namespace spillway {

class Connection;

struct HttpCore {
  // `observed`: hears of every request that is over; may be empty.
  HttpCore(const HttpLimits& given, Router routes, RequestObserver observed);
  ~HttpCore();

  HttpLimits limits;
  const std::shared_ptr<const RequestObserver> observer;  // Null: nobody asks
  std::shared_ptr<const Router> router;  // Never null; a connection keeps that of its request
  const std::unique_ptr<boost::asio::io_context> io;

  std::array<char, size_t{64} << 10> scratch{};  // Idle connections need no buffer of their own
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  int64_t turned_away = 0;  // Included in `connections`: only told that there are too many
  Peers peers;
  std::unordered_map<uint64_t, int64_t>
      key_connections;  // That have sent an API key, by its number

  std::atomic<bool> draining{false};
  std::shared_ptr<BodiesHeld> bodies = std::make_shared<BodiesHeld>();

  // What the client with this key holds.
  std::shared_ptr<PeerUse> peer_use(const std::string& key) {
    return peers.use(key, connections.size());
  }
  // The most bytes of bodies that one client may hold.
  size_t peer_body_bytes_max() const;

  bool on_network_thread() const;
  // Any thread: queues a task for the network thread, unless the server has stopped.
  void post(std::function<void()> task);
  // Any thread: queues a task for the worker thread, or for one that runs only bulk work, so that a
  // flood of long texts to tokenise delays no completion; none does when the server has stopped.
  void post_work(std::function<void()> task);
  void post_bulk_work(std::function<void()> task);
  // Adds to the number of answers of the network thread that are not fully written.
  void add_busy(int64_t change);

  // Runs what was posted until now.
  void run_posted();

  // Frees the worker threads, which have ended, and the tasks that came too late for them: these
  // may hold connections, which hold this.
  void drop_work();

  std::mutex mutex;  // For the members below
  // One thread each: RequestMemory counts two bodies that are parsed at once. Null: stopped.
  std::unique_ptr<boost::asio::thread_pool> worker;
  std::unique_ptr<boost::asio::thread_pool> bulk;
  std::condition_variable quiet;
  std::vector<std::function<void()>> posted;  // That run_posted() will run, in this order
  int64_t busy = 0;                           // Connections whose answer is not fully written
  bool stopped = false;
};

}  // namespace spillway
