#include "server/cli/bench/bench_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/linear_shapes.h"
#include "kernels/base/units.h"
#include "kernels/measure/peaks.h"
#include "server/cli/batch/workload_file.h"

namespace spillway {

namespace {

constexpr double kSecondsBetween = 4;  // Measuring takes about half a per cent of the run's time.
constexpr PeakRuns kShort{.runs = 1, .run_seconds = 0.002};

// A run's progress, copied from its Stopwatch.
struct Pace {
  int64_t generated = 0;
  int64_t sequences_started = 0;  // Sequences that have their first token
  int64_t sequences_finished = 0;
  double last_first_token = 0;  // Time of the latest sequence's first token
  double last_token = 0;        // Time of any sequence's latest token
  double cut = 0;               // Time at which the run was cut short; 0: it was not
};

// Records the times of sequences' first and last tokens, and the last one's status. The engine's
// thread writes, another waits.
class Stopwatch {
 public:
  // Cuts the run short after `decode_steps`; 0: never. A meter (or null) lives until disarm().
  Stopwatch(int64_t sequences, int64_t decode_steps, BenchMeter* meter)
      : sequences_(sequences), left_(sequences), steps_left_(decode_steps), meter_(meter) {}

  // Notes a token of a sequence, its first or a later one. False: the run ends here. Steps are
  // counted by the sequence that was the last to start, and the cut is in the middle of a sweep:
  // sequences before it in that sweep continue for one more.
  bool token(const void* sequence, bool first) {
    measure_machine();
    const std::lock_guard lock(mutex_);
    ++pace_.generated;
    pace_.last_token = steady_seconds();
    if (first) {
      ++pace_.sequences_started;
      pace_.last_first_token = pace_.last_token;
      latest_ = sequence;
    } else if (sequence == latest_ && pace_.sequences_started == sequences_ && --steps_left_ == 0) {
      pace_.cut = pace_.last_token;
    }
    return pace_.cut == 0;
  }
  void finished(const Finish& finish) {
    const std::lock_guard lock(mutex_);
    if (!finish.status.ok() && status_.ok()) status_ = finish.status;
    end_ = steady_seconds();
    ++pace_.sequences_finished;
    if (--left_ == 0) done_.notify_all();
  }

  // Waits; true when all sequences have finished.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, time, [&] { return left_ == 0; });
  }
  Pace pace() const {
    const std::lock_guard lock(mutex_);
    return pace_;
  }
  // REQUIRES: wait_for() was true.
  const Status& status() const { return status_; }
  double end() const { return end_; }

  // Stops using the meter.
  void disarm() {
    const std::lock_guard lock(meter_mutex_);
    meter_ = nullptr;
  }

 private:
  // Runs when a token arrives: the engine waits in here, and nothing else computes.
  void measure_machine() {
    const std::lock_guard lock(meter_mutex_);
    if (meter_ != nullptr) meter_->measure_now_and_then();
  }

  mutable std::mutex mutex_;
  std::condition_variable done_;
  const int64_t sequences_;
  int64_t left_;
  int64_t steps_left_;
  std::mutex meter_mutex_;
  BenchMeter* meter_;
  const void* latest_ = nullptr;  // The sequence that got its first token last
  Pace pace_;
  double end_ = 0;
  Status status_;
};

class BenchSink final : public TokenSink {
 public:
  explicit BenchSink(std::shared_ptr<Stopwatch> watch) : watch_(std::move(watch)) {}
  AfterToken on_token(int32_t, const TokenLogprobs*) override {
    const bool more = watch_->token(this, !std::exchange(started_, true));
    return more ? AfterToken::kGoOn : AfterToken::kStop;
  }
  void on_finish(const Finish& finish) override { watch_->finished(finish); }

 private:
  std::shared_ptr<Stopwatch> watch_;
  bool started_ = false;
};

// "sweep 3, 12 of 2048 tokens, 8 of 32 prompts", then "sweep 12, 416 of 2048 tokens, 3.4 tokens/s,
// 5 min 20 s left" on stderr: one moving line on a terminal, a line every half minute elsewhere.
class ProgressLine {
 public:
  ProgressLine(int64_t sequences, int64_t tokens, uint64_t sweeps_before)
      : sequences_(sequences), tokens_(tokens), sweeps_before_(sweeps_before) {}
  ~ProgressLine() {
    if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const Pace& pace, uint64_t sweeps) {
    if (fills(pace) || base_.generated == 0) base_ = pace;
    const double now = steady_seconds();
    if (now - shown_ < (terminal_ ? 1 : 30)) return;
    shown_ = now;
    const std::string text = text_of(pace, sweeps - sweeps_before_);
    std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", text.c_str());
    std::fflush(stderr);
    drawn_ = terminal_;
  }

 private:
  // The first block's prompts are still being computed: no estimate of the rest yet.
  bool fills(const Pace& pace) const {
    return pace.sequences_started < sequences_ && pace.sequences_finished == 0;
  }

  std::string text_of(const Pace& pace, uint64_t sweeps) const {
    std::string text = "sweep " + std::to_string(sweeps + 1) + ", " +
                       std::to_string(pace.generated) + " of " + std::to_string(tokens_) +
                       " tokens";
    if (fills(pace)) {
      return text + ", " + std::to_string(pace.sequences_started) + " of " +
             std::to_string(sequences_) + " prompts";
    }
    const int64_t gained = pace.generated - base_.generated;
    const double seconds = pace.last_token - base_.last_token;
    if (gained <= 0 || seconds <= 0) return text;
    const double rate = static_cast<double>(gained) / seconds;
    return text + ", " + format_rate(rate) + " tokens/s, " +
           format_seconds(static_cast<double>(tokens_ - pace.generated) / rate) + " left";
  }

  const int64_t sequences_, tokens_;
  const uint64_t sweeps_before_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  double shown_ = steady_seconds();
  bool drawn_ = false;
  Pace base_;
};

// Prompts that differ from each other; their tokens' values do not change the work.
std::vector<int32_t> prompt_of(const ModelShape& shape, int64_t sequence, int64_t tokens) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  uint64_t state = static_cast<uint64_t>(sequence) * 0x9e3779b97f4a7c15u + 1;
  for (int32_t& token : prompt) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(shape.vocabulary));
  }
  return prompt;
}

std::vector<Request> requests_of(const BenchFlags& flags, const ModelShape& shape) {
  std::vector<Request> requests(static_cast<size_t>(flags.sequences));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = prompt_of(shape, static_cast<int64_t>(i), flags.prompt_tokens);
    requests[i].max_tokens = static_cast<int32_t>(flags.new_tokens);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = 0;
  }
  return requests;
}

// Projects the whole run's times from a run that was cut short, whose decode steps took
// `decode_seconds`.
void project(const BenchFlags& flags, double decode_seconds, BenchResult* result) {
  result->cut = BenchResult::Cut{flags.decode_steps, decode_seconds, result->total_seconds,
                                 result->generated};
  const double step = decode_seconds / static_cast<double>(flags.decode_steps);
  result->decode_seconds = step * static_cast<double>(flags.new_tokens - 1);
  result->total_seconds = result->prefill_seconds + result->decode_seconds;
  result->generated = flags.sequences * flags.new_tokens;
}

}  // namespace

Result<BenchMeter> BenchMeter::open(Device& device, size_t memory_bytes) {
  std::optional<MemoryMeter> memory;
  if (memory_bytes > 0) {
    SPILLWAY_ASSIGN_OR_RETURN(MemoryMeter opened, MemoryMeter::open(device, memory_bytes));
    memory.emplace(std::move(opened));
  }
  return BenchMeter(device, std::move(memory));
}

void BenchMeter::measure_now_and_then() {
  if (steady_seconds() - measured_ < kSecondsBetween) return;
  if (memory_) found_.memory.push_back(memory_->measure());
  found_.peaks = best_of(found_.peaks, measure_peaks(device_, kShort));
  measured_ = steady_seconds();
}

int64_t bench_prefill_tokens(const BenchFlags& flags, std::optional<int64_t> block) {
  constexpr int64_t kPrefillTokensMax = 16384;  // Bounds the activations.
  const int64_t sequences = flags.sequences > 0 ? flags.sequences : block.value_or(0);
  if (sequences == 0 || flags.prompt_tokens > kPrefillTokensMax / sequences) {
    return kPrefillTokensMax;
  }
  return sequences * flags.prompt_tokens;
}

PlanWishes bench_wishes(BenchFlags* flags, EngineFlags* engine) {
  PlanWishes wishes;
  if (flags->requests > 0) {
    flags->sequences = flags->requests;
  } else {
    // They run together, prompts first.
    if (!engine->prefill_target) engine->prefill_target = 0;
    wishes.block_sequences = flags->sequences;
    wishes.prefill_tokens_max = bench_prefill_tokens(*flags, engine->block);
  }
  wishes.prompt_tokens = flags->prompt_tokens;
  wishes.new_tokens = flags->new_tokens;
  return wishes;
}

Status check_bench(const ModelShape& shape, const Plan& plan, BenchFlags* flags) {
  SPILLWAY_RETURN_IF_ERROR(check_lengths(flags->prompt_tokens, flags->new_tokens, shape));
  if (flags->sequences == 0) flags->sequences = plan.sequences_at_once;
  if (flags->decode_steps == 0 || flags->sequences <= plan.sequences_at_once) return {};
  return invalid_argument(
      "--decode-steps is for one block: " + std::to_string(plan.sequences_at_once) + " of the " +
      std::to_string(flags->sequences) + " sequences fit; leave it out, or lower --sequences");
}

Status run_bench_block(const BenchFlags& flags, Runtime& runtime, SweepLog& log, BenchMeter* meter,
                       BenchResult* result) {
  constexpr std::chrono::milliseconds kTick(200);
  Scheduler& scheduler = runtime.scheduler();
  std::vector<Request> requests = requests_of(flags, runtime.shape());
  // Shared with the sinks, which the scheduler may keep after an error here.
  const bool cut = flags.decode_steps > 0 && flags.decode_steps < flags.new_tokens - 1;
  const auto watch =
      std::make_shared<Stopwatch>(flags.sequences, cut ? flags.decode_steps : 0, meter);
  // Sinks that the scheduler keeps after an error here must not measure any more.
  struct Disarm {
    ~Disarm() { watch->disarm(); }
    std::shared_ptr<Stopwatch> watch;
  } disarm{watch};
  log.take();
  ProgressLine progress(flags.sequences, flags.sequences * flags.new_tokens,
                        scheduler.stats().sweeps);
  const double start = steady_seconds();
  for (Request& request : requests) {
    SPILLWAY_RETURN_IF_ERROR(
        scheduler.submit(std::move(request), std::make_shared<BenchSink>(watch)).status());
  }
  while (!watch->wait_for(kTick)) {
    progress.show(watch->pace(), scheduler.stats().sweeps);
  }
  SPILLWAY_RETURN_IF_ERROR(watch->status());
  const Pace pace = watch->pace();
  result->prefill_seconds = pace.last_first_token - start;
  result->decode_seconds = watch->end() - pace.last_first_token;
  result->total_seconds = watch->end() - start;
  result->generated = pace.generated;
  watch->disarm();
  if (meter != nullptr) result->during = meter->found();
  result->sweeps = log.take();
  result->cut.reset();
  if (cut) project(flags, pace.cut - pace.last_first_token, result);
  return {};
}

BenchFlags warm_up_of(const BenchFlags& flags, const ModelShape& shape, bool uses_disk) {
  constexpr double kFlopsMax = 1e12;
  constexpr int64_t kPromptTokensMax = 16;
  double flops_per_token = 0;
  for (const LinearShape& linear : linear_shapes(shape)) {
    flops_per_token += 2.0 * static_cast<double>(linear.outputs * linear.inputs * linear.count);
  }
  const int64_t tokens = std::max<int64_t>(1, std::llround(kFlopsMax / flops_per_token));
  BenchFlags warm = flags;
  warm.sequences = std::min(flags.sequences, tokens);
  warm.prompt_tokens = std::clamp<int64_t>(tokens / warm.sequences, 1,
                                           std::min(kPromptTokensMax, flags.prompt_tokens));
  warm.new_tokens = std::min<int64_t>(flags.new_tokens, uses_disk ? 1 : 2);
  return warm;
}

}  // namespace spillway
