// A token sink that holds the engine thread at its sequence's tokens until a test lets it go: what
// a test does meanwhile happens in the middle of a sweep, however fast the machine is.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "scheduler/request.h"

namespace spillway::test {

class GateSink final : public TokenSink {
 public:
  AfterToken on_token(int32_t, const TokenLogprobs*) override {
    std::unique_lock lock(mutex_);
    ++tokens_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return AfterToken::kGoOn;
  }
  void on_finish(const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    changed_.notify_all();
  }

  // Until the engine thread is held at the first token.
  void wait_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_ > 0; });
  }
  // From now on tokens pass.
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
    return *finish_;
  }
  int64_t tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int64_t tokens_ = 0;
  std::optional<Finish> finish_;
};

}  // namespace spillway::test
