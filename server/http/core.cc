#include "server/http/core.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

namespace spillway {

HttpCore::HttpCore(const HttpLimits& given, Router routes, RequestObserver observed)
    : limits(given),
      observer(observed ? std::make_shared<const RequestObserver>(std::move(observed)) : nullptr),
      router(std::make_shared<const Router>(std::move(routes))),
      io(std::make_unique<boost::asio::io_context>(1)),
      worker(std::make_unique<boost::asio::thread_pool>(1)),
      bulk(std::make_unique<boost::asio::thread_pool>(1)) {}

HttpCore::~HttpCore() = default;

void HttpCore::post(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (!stopped) boost::asio::post(*io, std::move(task));
}

void HttpCore::post_work(std::function<void()> task) {
  boost::asio::post(*worker, std::move(task));
}

void HttpCore::post_bulk_work(std::function<void()> task) {
  boost::asio::post(*bulk, std::move(task));
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
