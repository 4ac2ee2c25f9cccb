// A token sink that keeps everything and lets a test wait for the end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "scheduler/request.h"

namespace spillway::test {

class CollectingSink : public TokenSink {
 public:
  // Ends the sequence, like `after` says, after `stop_after` tokens; 0: never.
  explicit CollectingSink(size_t stop_after = 0, AfterToken after = AfterToken::kStop)
      : stop_after_(stop_after), after_(after) {}

  void on_prompt_logprobs(std::span<const TokenLogprobs> all) override {
    prompt_logprobs.assign(all.begin(), all.end());
  }
  AfterToken on_token(int32_t token, const TokenLogprobs* logprob) override {
    const std::lock_guard lock(mutex_);
    tokens.push_back(token);
    if (logprob != nullptr) logprobs.push_back(*logprob);
    changed_.notify_all();
    return stop_after_ == 0 || tokens.size() < stop_after_ ? AfterToken::kGoOn : after_;
  }
  void on_finish(const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    changed_.notify_all();
  }

  Finish wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
    return *finish_;
  }
  // Until that many tokens have come or the sequence has ended.
  void wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens.size() >= count || finish_.has_value(); });
  }

  // To be read after wait().
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;

 private:
  const size_t stop_after_;
  const AfterToken after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Finish> finish_;
};

}  // namespace spillway::test
