#include "tests/support/fake_scheduler.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

std::chrono::duration<double> duration(double seconds) {
  return std::chrono::duration<double>(seconds);
}

// Any numbers will do, if they are the same each time and order the candidates.
TokenLogprobs fake_logprobs(int32_t token, int32_t best) {
  TokenLogprobs logprobs;
  logprobs.logprob = -0.5f - static_cast<float>(token % 7);
  for (int32_t i = 0; i < best; ++i) {
    logprobs.best.emplace_back(token + i, logprobs.logprob - static_cast<float>(i));
  }
  return logprobs;
}

}  // namespace

int32_t fake_token(const Request& request, int64_t t) {
  const int64_t sum = std::accumulate(request.prompt.begin(), request.prompt.end(), int64_t{0});
  const auto seed =
      static_cast<int64_t>(request.sampling.temperature > 0 ? request.sampling.seed % 1000 : 0);
  return static_cast<int32_t>('a' + 1 + (sum * 7 + seed + t * 5) % 26);
}

FakeScheduler::FakeScheduler(Options options) : options_(std::move(options)) {
  shape_ = test::make_shape(
      {.layers = 1, .hidden = 8, .heads = 1, .mlp = 8, .vocabulary = 300, .positions = 128});
  shape_.name = "fake-model";
  shape_.bos_token = 0;
  shape_.eos_tokens = {0};
  engine_ = std::thread([this] { run(); });
}

FakeScheduler::~FakeScheduler() {
  drain(0);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  engine_.join();
}

Result<RequestId> FakeScheduler::submit(Request request, std::shared_ptr<TokenSink> sink) {
  const std::lock_guard lock(mutex_);
  if (draining_) return Status(Code::kCancelled, "draining");
  if (accept_left_ <= 0) return refusal_;
  if (std::ssize(alive_) >= options_.queue_max) return Status(Code::kCapacity, "the queue is full");
  --accept_left_;
  const RequestId id{static_cast<uint64_t>(++submitted_)};
  alive_.insert(id);
  seen_.push_back(request);
  mailbox_.push_back({id, std::move(request), std::move(sink), 0, false});
  changed_.notify_all();
  return id;
}

void FakeScheduler::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (alive_.contains(id)) cancelled_.insert(id);
  changed_.notify_all();
}

void FakeScheduler::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait_for(lock, duration(seconds), [this] { return alive_.empty(); });
  cancelled_ = alive_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return alive_.empty(); });
}

SchedulerStats FakeScheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.waiting = std::ssize(mailbox_);
  stats.running = std::ssize(alive_) - stats.waiting;
  stats.healthy = healthy_;
  return stats;
}

void FakeScheduler::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeScheduler::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeScheduler::refuse_after(int64_t accepted, Status refusal) {
  const std::lock_guard lock(mutex_);
  accept_left_ = accepted;
  refusal_ = std::move(refusal);
}

void FakeScheduler::set_healthy(bool healthy) {
  const std::lock_guard lock(mutex_);
  healthy_ = healthy;
}

void FakeScheduler::set_sweeps(double stalled_seconds, int64_t failures_in_a_row,
                               double failed_seconds_ago) {
  const std::lock_guard lock(mutex_);
  stats_.stalled_seconds = stalled_seconds;
  stats_.failures_in_a_row = failures_in_a_row;
  stats_.failed_seconds_ago = failed_seconds_ago;
}

int64_t FakeScheduler::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

int64_t FakeScheduler::finished(FinishReason reason) const {
  const std::lock_guard lock(mutex_);
  const auto found = finished_.find(reason);
  return found == finished_.end() ? 0 : found->second;
}

std::vector<Request> FakeScheduler::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

bool FakeScheduler::wait_idle(double seconds) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration(seconds), [this] { return alive_.empty(); });
}

bool FakeScheduler::wait_submitted(int64_t count, double seconds) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration(seconds), [&] { return submitted_ >= count; });
}

void FakeScheduler::run() {
  std::vector<Sequence> running;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      // While held, only a cancellation or new work to cancel wakes it.
      changed_.wait(lock, [&] {
        if (stopping_) return true;
        if (held_) return !cancelled_.empty();
        return !running.empty() || !mailbox_.empty();
      });
      if (stopping_) return;
      std::move(mailbox_.begin(), mailbox_.end(), std::back_inserter(running));
      mailbox_.clear();
    }
    std::vector<Sequence> still;
    for (Sequence& sequence : running) {
      std::optional<Finish> finish = step(sequence);
      if (!finish) {
        still.push_back(std::move(sequence));
        continue;
      }
      count(*finish);
      sequence.sink->on_finish(*finish);
      sequence.sink.reset();
      record(sequence.id, *finish);
    }
    running = std::move(still);
    std::this_thread::sleep_for(duration(options_.round_seconds));
  }
}

std::optional<Finish> FakeScheduler::step(Sequence& sequence) {
  const Request& request = sequence.request;
  const auto end = [&](FinishReason reason) {
    Finish finish;
    finish.reason = reason;
    finish.usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    finish.usage.cached_tokens = options_.cached_tokens;
    finish.usage.generated_tokens = sequence.generated;
    finish.usage.kv = {apply(request.kv, options_.kv_rule).kind, 3, 4, 500};
    return finish;
  };
  if (is_cancelled(sequence.id)) return end(FinishReason::kCancelled);
  {
    const std::lock_guard lock(mutex_);
    if (held_) return {};
  }
  if (!sequence.admitted) {
    sequence.admitted = true;
    sequence.sink->on_admitted();
    sequence.sink->on_prompt_progress(options_.cached_tokens);
    if (request.prompt_logprobs >= 0) {
      std::vector<TokenLogprobs> logprobs(1);
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        logprobs.push_back(fake_logprobs(request.prompt[i], request.prompt_logprobs));
      }
      sequence.sink->on_prompt_logprobs(logprobs);
    }
  }
  const int64_t chunk = options_.prompt_chunk;
  if (chunk > 0 && sequence.processed + chunk < static_cast<int64_t>(request.prompt.size())) {
    sequence.processed += chunk;
    sequence.sink->on_prompt_progress(sequence.processed);
    return {};
  }
  if (sequence.generated == options_.fail_after_tokens) {
    Finish finish = end(FinishReason::kError);
    finish.status = Status(Code::kDeviceLost, "secret detail at /dev/nvidia0");
    return finish;
  }
  if (sequence.generated == request.max_tokens) return end(FinishReason::kLength);
  const int32_t token = options_.token ? options_.token(request, sequence.generated)
                                       : fake_token(request, sequence.generated);
  const bool stops = (token == 0 && !request.ignore_eos) ||
                     std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
                         request.stop_tokens.end();
  const TokenLogprobs made = fake_logprobs(token, std::max(request.logprobs, 0));
  const TokenLogprobs* const logprobs = request.logprobs >= 0 ? &made : nullptr;
  if (stops && sequence.generated++ >= request.min_tokens) {
    const AfterToken after = sequence.sink->on_stop_token(token, logprobs);
    if (after == AfterToken::kCancel) return end(FinishReason::kCancelled);
    Finish finish = end(FinishReason::kStop);
    finish.stop_token = token;
    return finish;
  }
  if (!stops) ++sequence.generated;
  const AfterToken after = sequence.sink->on_token(token, logprobs);
  if (after == AfterToken::kCancel) return end(FinishReason::kCancelled);
  if (after == AfterToken::kStop) return end(FinishReason::kStop);
  if (sequence.generated == request.max_tokens) return end(FinishReason::kLength);
  return {};
}

void FakeScheduler::set_last_sweep(const SweepStats& sweep) {
  const std::lock_guard lock(mutex_);
  stats_.last_sweep = sweep;
}

bool FakeScheduler::is_cancelled(RequestId id) {
  const std::lock_guard lock(mutex_);
  return cancelled_.contains(id);
}

void FakeScheduler::count(const Finish& finish) {
  const std::lock_guard lock(mutex_);
  stats_.prompt_tokens += static_cast<uint64_t>(finish.usage.prompt_tokens);
  stats_.generated_tokens += static_cast<uint64_t>(finish.usage.generated_tokens);
  stats_.kv.add(finish.usage.kv);
  ++stats_.ended[static_cast<size_t>(finish.reason)];
  stats_.times.add(finish);
}

void FakeScheduler::record(RequestId id, const Finish& finish) {
  const std::lock_guard lock(mutex_);
  ++finished_[finish.reason];
  alive_.erase(id);
  cancelled_.erase(id);
  changed_.notify_all();
}

}  // namespace spillway
