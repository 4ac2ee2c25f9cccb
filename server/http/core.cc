#include "server/http/core.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

namespace spillway {

HttpCore::HttpCore(const HttpLimits& given, Router routes)
    : limits(given),
      router(std::move(routes)),
      io(std::make_unique<boost::asio::io_context>(1)),
      workers(std::make_unique<boost::asio::thread_pool>(1)) {}

HttpCore::~HttpCore() = default;

void HttpCore::post(std::function<void()> task) {
  const std::lock_guard lock(mutex);
  if (!stopped) boost::asio::post(*io, std::move(task));
}

void HttpCore::post_work(std::function<void()> task) {
  boost::asio::post(*workers, std::move(task));
}

void HttpCore::add_busy(int64_t change) {
  const std::lock_guard lock(mutex);
  busy += change;
  if (busy == 0) quiet.notify_all();
}

}  // namespace spillway
