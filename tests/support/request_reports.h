// What a server says of requests that are over, collected. Any thread.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "server/http/request_record.h"
#include "tests/support/patience.h"

namespace spillway::test {

class RequestReports {
 public:
  RequestObserver observer() const {
    return [state = state_](const RequestReport& report) {
      const std::lock_guard lock(state->mutex);
      state->reports.push_back(report);
      state->changed.notify_all();
    };
  }

  // All so far, once there are so many; fails the test if there never are.
  std::vector<RequestReport> wait(size_t count) const {
    std::unique_lock lock(state_->mutex);
    REQUIRE(state_->changed.wait_for(lock, std::chrono::duration<double>(kPatience),
                                     [&] { return state_->reports.size() >= count; }));
    return state_->reports;
  }

  // The next one, counted by calls.
  RequestReport next() {
    ++seen_;
    return wait(seen_)[seen_ - 1];
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<RequestReport> reports;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  size_t seen_ = 0;
};

}  // namespace spillway::test
