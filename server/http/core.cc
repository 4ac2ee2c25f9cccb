#include "server/http/core.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <utility>

namespace spillway {

HttpCore::HttpCore(const HttpLimits& given, Router routes, RequestObserver observed)
    : limits(given),
      observer(observed ? std::make_shared<const RequestObserver>(std::move(observed)) : nullptr),
      router(std::make_shared<const Router>(std::move(routes))),
      io(std::make_unique<boost::asio::io_context>(1)),
      worker(std::make_unique<boost::asio::thread_pool>(1)),
      bulk(std::make_unique<boost::asio::thread_pool>(1)) {}

HttpCore::~HttpCore() = default;

bool HttpCore::on_network_thread() const {
  return io->get_executor().running_in_this_thread();
}

void HttpCore::post(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (stopped) return;
  posted.push_back(std::move(task));
  if (posted.size() > 1) return;  // A sweep's tokens, hundreds at once, wake the thread once.
  try {
    boost::asio::post(*io, [this] { run_posted(); });
  } catch (const std::exception&) {
    // Else nobody would be told of those that follow. It is destroyed without the lock.
    task = std::move(posted.back());
    posted.pop_back();
    throw;
  }
}

void HttpCore::run_posted() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex);
    tasks.swap(posted);
  }
  for (std::function<void()>& task : tasks) {
    try {
      std::exchange(task, nullptr)();
    } catch (const std::exception&) {
      // Out of memory for one connection; the others go on.
    }
  }
}

void HttpCore::post_work(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (worker != nullptr) boost::asio::post(*worker, std::move(task));
}

void HttpCore::post_bulk_work(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (bulk != nullptr) boost::asio::post(*bulk, std::move(task));
}

void HttpCore::drop_work() {
  std::unique_ptr<boost::asio::thread_pool> pools[2];  // Freed without the lock
  const std::lock_guard lock(mutex);
  pools[0] = std::move(worker);
  pools[1] = std::move(bulk);
}

size_t HttpCore::peer_body_bytes_max() const {
  const double share = limits.peer_share_of_bodies * static_cast<double>(limits.bodies_bytes_max);
  return std::max(static_cast<size_t>(share), limits.body_bytes_max);
}

void HttpCore::add_busy(int64_t change) {
  const std::lock_guard lock(mutex);
  busy += change;
  if (busy == 0) quiet.notify_all();
}

}  // namespace spillway
