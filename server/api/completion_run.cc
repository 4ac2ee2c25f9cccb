#include "server/api/completion_run.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "kernels/base/clock.h"
#include "server/api/sequence_text.h"

namespace spillway {

// Shared by the run and its sinks. The engine may deliver tokens of the first sequences while
// start() still submits the others, so everything is under one lock, which the engine never waits
// for longer than a copy takes: no scheduler call is made under it.
class CompletionRun::State {
 public:
  State(Scheduler& scheduler, const Tokenizer* tokenizer, CompletionCall call,
        CompletionEvents events)
      : scheduler_(&scheduler), call_(std::move(call)), events_(std::move(events)) {
    const auto count = static_cast<int32_t>(call_.requests.size());
    left_ = count;
    for (int32_t i = 0; i < count; ++i) sequences_.emplace_back(tokenizer, call_, i);
    for (int32_t i = 0; i < count; i += call_.samples) {
      usage_.prompt_tokens +=
          static_cast<int64_t>(call_.requests[static_cast<size_t>(i)].prompt.size());
    }
    cached_.resize(static_cast<size_t>(call_.prompts()));
    processed_.resize(call_.requests.size(), -1);
    if (!call_.stream) result_.choices.resize(call_.requests.size());
  }

  const CompletionCall& call() const { return call_; }

  std::optional<ApiError> submit_all(const std::shared_ptr<State>& self);
  void cancel();

  void on_admitted() {
    const std::lock_guard lock(mutex_);
    if (!admitted_) admitted_ = steady_seconds();
    if (phase_ == Phase::kAbandoned || !events_.on_admitted) return;
    std::exchange(events_.on_admitted, nullptr)();
  }
  void on_prompt_progress(size_t index, int64_t tokens);
  void on_prompt_logprobs(size_t index, std::span<const TokenLogprobs> logprobs) {
    const std::lock_guard lock(mutex_);
    sequences_[index].add_prompt_scores(logprobs);
  }
  AfterToken on_token(size_t index, int32_t token, const TokenLogprobs* logprobs, bool stop);
  void on_finish(size_t index, const Finish& finish);

 private:
  void tell_progress();                     // Under the lock
  void deliver(size_t index);               // Under the lock
  CompletionTimes times() const;            // Under the lock
  void note_failure(const Finish& finish);  // Under the lock
  void note_times(const Usage& usage);
  void note_cached(size_t index, int64_t tokens);
  void finish_call(std::unique_lock<std::mutex> lock);

  enum class Phase : uint8_t { kSubmitting, kRunning, kAbandoned };

  Scheduler* scheduler_;
  const CompletionCall call_;
  std::mutex mutex_;
  CompletionEvents events_;
  std::vector<SequenceText> sequences_;
  std::vector<RequestId> ids_;
  std::vector<ChoiceText> early_;  // Pieces delivered before all sequences were submitted
  CompletionResult result_;
  CompletionUsage usage_;
  std::vector<std::optional<int64_t>> cached_;  // Of each prompt; none: no choice is admitted
  std::vector<int64_t> processed_;              // Prompt tokens by sequence; -1: not admitted
  const double submitted_ = steady_seconds();
  std::optional<double> admitted_, first_token_;  // Of the first sequence to get there
  int32_t left_ = 0;                              // Sequences that have not finished
  bool cancelled_ = false;
  Phase phase_ = Phase::kSubmitting;
};

namespace {

void append(ChoiceText& whole, ChoiceText piece) {
  if (piece.first) {
    whole = std::move(piece);
    return;
  }
  whole.text += piece.text;
  whole.tokens.insert(whole.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  std::move(piece.scores.begin(), piece.scores.end(), std::back_inserter(whole.scores));
  whole.finished = piece.finished;
  whole.hit_length = piece.hit_length;
  whole.stop_token = piece.stop_token;
  whole.stop_string = std::move(piece.stop_string);
  whole.usage = piece.usage;
  whole.times = piece.times;
}

ApiError error_of(const Finish& finish) {
  if (finish.reason == FinishReason::kCancelled) return shutting_down();
  ApiError error = engine_error();
  error.log_detail = finish.status.message();
  return error;
}

class Sink : public TokenSink {
 public:
  Sink(std::shared_ptr<CompletionRun::State> state, size_t index)
      : state_(std::move(state)), index_(index) {}

  void on_admitted() override { state_->on_admitted(); }
  void on_prompt_progress(int64_t tokens) override { state_->on_prompt_progress(index_, tokens); }
  void on_prompt_logprobs(std::span<const TokenLogprobs> logprobs) override {
    state_->on_prompt_logprobs(index_, logprobs);
  }
  AfterToken on_token(int32_t token, const TokenLogprobs* logprobs) override {
    return state_->on_token(index_, token, logprobs, false);
  }
  AfterToken on_stop_token(int32_t token, const TokenLogprobs* logprobs) override {
    return state_->on_token(index_, token, logprobs, true);
  }
  void on_finish(const Finish& finish) override { state_->on_finish(index_, finish); }

 private:
  std::shared_ptr<CompletionRun::State> state_;
  size_t index_;
};

}  // namespace

std::optional<ApiError> CompletionRun::State::submit_all(const std::shared_ptr<State>& self) {
  std::vector<RequestId> ids;
  std::optional<ApiError> refusal;
  for (size_t i = 0; i < call_.requests.size() && !refusal; ++i) {
    auto id = scheduler_->submit(call_.requests[i], std::make_shared<Sink>(self, i));
    if (id.ok()) {
      ids.push_back(id.value());
    } else {
      refusal = refused_by_scheduler(id.status());
    }
  }
  if (refusal) {
    {
      const std::lock_guard lock(mutex_);
      phase_ = Phase::kAbandoned;
    }
    for (const RequestId id : ids) scheduler_->cancel(id);
    return refusal;
  }
  std::unique_lock lock(mutex_);
  ids_ = ids;
  phase_ = Phase::kRunning;
  tell_progress();
  for (ChoiceText& piece : early_) events_.on_text(std::move(piece));
  early_.clear();
  const bool failed = result_.error.has_value();
  if (left_ == 0) {
    finish_call(std::move(lock));
  } else if (failed) {  // There were no ids yet that on_finish could cancel.
    lock.unlock();
    for (const RequestId id : ids) scheduler_->cancel(id);
  }
  return {};
}

void CompletionRun::State::cancel() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const RequestId id : ids) scheduler_->cancel(id);
}

void CompletionRun::State::on_prompt_progress(size_t index, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  if (processed_[index] < 0) note_cached(index, tokens);
  processed_[index] = tokens;
  tell_progress();
}

void CompletionRun::State::tell_progress() {
  if (phase_ != Phase::kRunning || cancelled_ || !events_.on_progress) return;
  // Nothing was admitted yet.
  if (std::ranges::all_of(processed_, [](int64_t tokens) { return tokens < 0; })) return;
  PromptProgress progress{usage_.prompt_tokens, usage_.cached_tokens, 0, times().prompt};
  const auto samples = static_cast<size_t>(call_.samples);
  for (size_t prompt = 0; prompt * samples < processed_.size(); ++prompt) {
    const auto first = processed_.begin() + static_cast<std::ptrdiff_t>(prompt * samples);
    // Of several choices the one that is behind.
    const int64_t least = *std::min_element(first, first + call_.samples);
    progress.processed += std::max<int64_t>(0, least);
  }
  events_.on_progress(progress);
}

AfterToken CompletionRun::State::on_token(size_t index, int32_t token,
                                          const TokenLogprobs* logprobs, bool stop) {
  const std::lock_guard lock(mutex_);
  if (cancelled_ || result_.error || phase_ == Phase::kAbandoned) return AfterToken::kCancel;
  ++usage_.generated_tokens;
  processed_[index] = static_cast<int64_t>(call_.requests[index].prompt.size());
  if (!first_token_) first_token_ = steady_seconds();
  if (stop) {
    sequences_[index].add_stop_token(token, logprobs);
    return AfterToken::kStop;
  }
  // The text of the last token goes out with the finish, which follows at once: benchmarks count
  // the pieces of a stream as tokens.
  if (!sequences_[index].add_token(token, logprobs)) return AfterToken::kStop;
  if (!sequences_[index].complete()) deliver(index);
  return AfterToken::kGoOn;
}

void CompletionRun::State::deliver(size_t index) {
  SequenceText& sequence = sequences_[index];
  if (!sequence.ready()) return;
  ChoiceText piece = sequence.take();
  piece.usage = usage_;
  if (call_.timings) piece.times = times();
  if (!call_.stream) {
    append(result_.choices[index], std::move(piece));
  } else if (phase_ == Phase::kSubmitting) {
    early_.push_back(std::move(piece));
  } else if (phase_ == Phase::kRunning) {
    events_.on_text(std::move(piece));
  }
}

CompletionTimes CompletionRun::State::times() const {
  const double now = steady_seconds();
  const double admitted = admitted_.value_or(now);
  const double first = first_token_.value_or(now);
  return {admitted - submitted_, first - admitted, now - first};
}

void CompletionRun::State::note_failure(const Finish& finish) {
  if (!result_.error) {
    result_.error = error_of(finish);
    result_.own_fault = finish.own_fault;
    result_.engine = finish.status;
  }
  result_.cancelled |= finish.reason == FinishReason::kCancelled;
}

void CompletionRun::State::note_times(const Usage& usage) {
  CompletionTimes& times = result_.times;
  times.queue = std::max(times.queue, usage.queue_seconds);
  times.prompt = std::max(times.prompt, usage.prefill_seconds);
  times.generation = std::max(times.generation, usage.decode_seconds);
}

// A prompt that is counted once was computed as far as the one of its choices had to that found
// least.
void CompletionRun::State::note_cached(size_t index, int64_t tokens) {
  std::optional<int64_t>& least = cached_[index / static_cast<size_t>(call_.samples)];
  const int64_t now = std::min(least.value_or(tokens), tokens);
  usage_.cached_tokens += now - least.value_or(0);
  least = now;
}

void CompletionRun::State::on_finish(size_t index, const Finish& finish) {
  std::unique_lock lock(mutex_);
  --left_;
  std::vector<RequestId> others;
  note_times(finish.usage);
  note_cached(index, finish.usage.cached_tokens);
  usage_.kv.add(finish.usage.kv);
  result_.hit_length |= finish.reason == FinishReason::kLength;
  if (finish.reason == FinishReason::kError || finish.reason == FinishReason::kCancelled) {
    if (!result_.error) others = ids_;  // No answer without one choice: the rest is wasted work.
    note_failure(finish);
  } else if (cancelled_) {
    result_.cancelled = true;
  } else if (!result_.error && phase_ != Phase::kAbandoned) {
    try {
      sequences_[index].finish(finish.reason, finish.stop_token);
      deliver(index);
    } catch (const std::bad_alloc&) {
      Finish failed;
      failed.reason = FinishReason::kError;
      failed.status = Status(Code::kCapacity, "no memory for the answer's text");
      note_failure(failed);
      others = ids_;
    }
  }
  if (left_ == 0 && phase_ == Phase::kRunning) {
    finish_call(std::move(lock));
    return;
  }
  lock.unlock();
  for (const RequestId id : others) scheduler_->cancel(id);
}

// Nothing comes after this, so the callbacks (and everything they own) are released.
void CompletionRun::State::finish_call(std::unique_lock<std::mutex> lock) {
  result_.cancelled |= cancelled_;
  if (result_.cancelled && !result_.error) result_.error = shutting_down();
  result_.usage = usage_;
  result_.first_token = first_token_;
  const auto on_done = std::move(events_.on_done);
  events_ = {};
  CompletionResult result = std::move(result_);
  lock.unlock();
  on_done(std::move(result));
}

CompletionRun::CompletionRun(std::shared_ptr<State> state) : state_(std::move(state)) {}
CompletionRun::~CompletionRun() = default;

ApiResult<std::shared_ptr<CompletionRun>> CompletionRun::start(Scheduler& scheduler,
                                                               const Tokenizer* tokenizer,
                                                               CompletionCall call,
                                                               CompletionEvents events) {
  auto state = std::make_shared<State>(scheduler, tokenizer, std::move(call), std::move(events));
  if (auto refusal = state->submit_all(state)) return *std::move(refusal);
  return std::shared_ptr<CompletionRun>(new CompletionRun(std::move(state)));
}

void CompletionRun::cancel() {
  state_->cancel();
}

const CompletionCall& CompletionRun::call() const {
  return state_->call();
}

}  // namespace spillway
