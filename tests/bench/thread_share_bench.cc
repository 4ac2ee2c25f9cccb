// How well a sweep's work divides among so many threads: the share of their time in which they have
// work. One thread runs all tasks of every op, as they are cut for THREADS, and measures each; of
// the layers' times for a task the least counts. Then THREADS simulated ones take the tasks in
// order, as they become free, and wait for each other after every parallel loop. What runs between
// loops runs alone. Memory and caches are not simulated: each thread is taken to be as fast as the
// one that ran.
//
// Usage: thread_share_bench SHAPE FORMAT THREADS [SEQUENCES [PROMPT_TOKENS [NEW_TOKENS [LOOP_US]]]]
// for instance llama-3.2-1b q8 64 32 128 8. LOOP_US (default: 5): microseconds that it takes to
// begin and end a parallel loop.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/cpu/cpu_context.h"
#include "offload/config_files.h"
#include "scheduler/block_scheduler.h"

namespace spillway {
namespace {

double sum_of(std::span<const float> tasks) {
  return std::accumulate(tasks.begin(), tasks.end(), 0.0);
}

// Until when `threads` have finished the tasks.
double divided(std::span<const float> tasks, int threads) {
  std::priority_queue<double, std::vector<double>, std::greater<>> busy_until;
  for (int i = 0; i < threads; ++i) busy_until.push(0);
  double last = 0;
  for (const float seconds : tasks) {
    const double end = busy_until.top() + static_cast<double>(seconds);
    busy_until.pop();
    busy_until.push(end);
    last = std::max(last, end);
  }
  return last;
}

// An op that every layer runs: its name, and which call of that name it is since the last
// attention.
using OpKey = std::pair<std::string, int>;
// Which parallel loop of that op, and its tasks.
using LoopKey = std::tuple<OpKey, size_t, size_t>;

// The least that anything took in any layer counts: what neighbours on the machine add is not of
// interest.
struct OpTotal {
  int64_t times = 0;
  double before = 1e9;  // Since the op before it
  double alone = 1e9;   // In the op, outside of its loops
};
struct LoopTotal {
  int64_t times = 0;
  std::vector<float> tasks;
};

// Hears of the tasks of each parallel loop, and of the ops around them. On the engine thread.
class Recorder final : public cpu::CpuContext::TaskObserver, public Trace {
 public:
  explicit Recorder(int threads) : threads_(threads) {}

  void observe(std::span<const float> seconds) override {
    const double begin = steady_seconds();
    loops_of_op_.emplace_back(seconds.begin(), seconds.end());
    own_in_op_ += steady_seconds() - begin;
  }
  Track track(std::string_view) override { return {}; }
  void span(Track, const char* name, double start, double end, const char*, int64_t) override {
    if (name == std::string_view("attention")) calls_.clear();
    const OpKey key(name, calls_[name]++);
    double work = 0;
    for (size_t i = 0; i < loops_of_op_.size(); ++i) {
      const std::vector<float>& tasks = loops_of_op_[i];
      LoopTotal& total = loops_[{key, i, tasks.size()}];
      total.times += 1;
      if (total.tasks.empty()) total.tasks = tasks;
      for (size_t k = 0; k < tasks.size(); ++k) {
        total.tasks[k] = std::min(total.tasks[k], tasks[k]);
      }
      work += sum_of(tasks);
    }
    OpTotal& op = ops_[key];
    op.times += 1;
    op.before = std::min(op.before, last_end_ == 0 ? 0 : start - last_end_);
    op.alone = std::min(op.alone, std::max(0.0, end - start - work - own_in_op_));
    loops_of_op_.clear();
    own_in_op_ = 0;
    last_end_ = steady_seconds();
  }
  void counter(const char*, double, double) override {}

  // Prints what ran since the phase before, and begins the next.
  void end_phase(const char* name, double loop_seconds) {
    double work = 0, until_end = 0, alone = 0, before = 0;
    int64_t loops = 0;
    std::printf("%s\n%12s %5s %5s %6s %6s %10s %13s %6s\n", name, "op", "call", "loop", "tasks",
                "times", "work, ms", "would be, ms", "share");
    for (const auto& [key, total] : loops_) {
      const auto& [op, loop, tasks] = key;
      const auto times = static_cast<double>(total.times);
      const double loop_work = times * sum_of(total.tasks);
      const double loop_end = times * divided(total.tasks, threads_);
      work += loop_work;
      until_end += loop_end;
      loops += total.times;
      std::printf("%12s %5d %5zu %6zu %6ld %10.2f %13.3f %6.3f\n", op.first.c_str(), op.second,
                  loop, tasks, total.times, 1e3 * loop_work, 1e3 * loop_end,
                  loop_work / threads_ / loop_end);
    }
    for (const auto& [key, total] : ops_) {
      alone += static_cast<double>(total.times) * total.alone;
      before += static_cast<double>(total.times) * total.before;
    }
    std::printf("%12s %48.3f\n%12s %48.3f\n", "within ops", 1e3 * alone, "between ops",
                1e3 * before);
    const double without = until_end + alone + before;
    const double with = without + loop_seconds * static_cast<double>(loops);
    std::printf(
        "%d threads would have work %.3f of their time, %.3f with %.0f us for each of %ld loops\n",
        threads_, work / threads_ / without, work / threads_ / with, 1e6 * loop_seconds, loops);
    begin();
  }

  // Forgets what ran before; the next phase begins with the next op.
  void begin() {
    loops_.clear();
    ops_.clear();
    calls_.clear();
    loops_of_op_.clear();
    last_end_ = own_in_op_ = 0;
  }

 private:
  const int threads_;
  std::vector<std::vector<float>> loops_of_op_;
  std::map<LoopKey, LoopTotal> loops_;
  std::map<OpKey, OpTotal> ops_;
  std::map<std::string, int> calls_;  // Since the last attention
  double last_end_ = 0;               // Of the op before; 0: none
  double own_in_op_ = 0;              // What observe() took in this one
};

// What the sequences of a round share. A round that only warms up memory prints nothing.
struct Round {
  Recorder& recorder;
  bool measured = false;
  double loop_seconds = 0;
  int64_t without_token = 0, running = 0;
  std::latch finished{1};

  void end_phase(const char* name) {
    measured ? recorder.end_phase(name, loop_seconds) : recorder.begin();
  }
};

// Ends the first phase when every sequence has its first token, and the second one with the last.
class PhaseSink final : public TokenSink {
 public:
  explicit PhaseSink(std::shared_ptr<Round> round) : round_(std::move(round)) {}
  AfterToken on_token(int32_t, const TokenLogprobs*) override {
    if (std::exchange(first_, false) && --round_->without_token == 0) round_->end_phase("prompts");
    return AfterToken::kGoOn;
  }
  void on_finish(const Finish&) override {
    if (--round_->running > 0) return;
    round_->end_phase("decode steps");
    round_->finished.count_down();
  }

 private:
  std::shared_ptr<Round> round_;
  bool first_ = true;
};

struct Arguments {
  std::string shape, format;
  int threads = 0;
  int64_t sequences = 32, prompt_tokens = 128, new_tokens = 8;
  double loop_seconds = 5e-6;
};

Status run(const Arguments& arguments) {
  SPILLWAY_ASSIGN_OR_RETURN(ModelShape shape, find_model_shape(arguments.shape));
  const std::optional<Format> format = format_of_name(arguments.format);
  if (!format) return invalid_argument(arguments.format + " is no format of weights");
  SPILLWAY_ASSIGN_OR_RETURN(const auto device, open_cpu_device(arguments.threads));
  Recorder recorder(arguments.threads);
  device->set_trace(&recorder);
  SPILLWAY_ASSIGN_OR_RETURN(const auto weights, WeightStore::dummy(*device, shape, *format, 1, {}));
  const int64_t rows = arguments.prompt_tokens + arguments.new_tokens;
  SchedulerOptions scheduling;
  scheduling.block_sequences_max = arguments.sequences;
  scheduling.prefill_tokens_max = arguments.sequences * arguments.prompt_tokens;
  scheduling.gather_seconds = 1;  // One sweep takes all prompts.
  EngineOptions options;
  options.kv_format = Format::kQ8;
  options.sweep_tokens_max = sweep_tokens_max(shape, scheduling);
  options.kv_bytes = kv_layout(shape, options.kv_format).sequence_bytes(rows + kKvBlockRows) *
                     static_cast<uint64_t>(arguments.sequences * shape.layers);
  options.prefault_memory = true;
  SPILLWAY_ASSIGN_OR_RETURN(auto engine, Engine::open(*device, *weights, options));
  const auto stream = device->new_stream("context");
  auto* const context = static_cast<cpu::CpuContext*>(stream->native());
  context->observe(&recorder);
  const auto scheduler = start_scheduler(std::move(engine), scheduling);
  for (const bool measured : {false, true}) {
    const std::shared_ptr<Round> round(new Round{recorder, measured, arguments.loop_seconds,
                                                 arguments.sequences, arguments.sequences});
    for (int64_t i = 0; i < arguments.sequences; ++i) {
      Request request;
      for (int64_t token = 0; token < arguments.prompt_tokens; ++token) {
        request.prompt.push_back(static_cast<int32_t>((i * 977 + token * 31) % shape.vocabulary));
      }
      request.max_tokens = static_cast<int32_t>(arguments.new_tokens);
      request.ignore_eos = true;
      request.sampling.temperature = 0;
      SPILLWAY_RETURN_IF_ERROR(
          scheduler->submit(std::move(request), std::make_shared<PhaseSink>(round)).status());
    }
    round->finished.wait();
  }
  scheduler->drain(1);
  context->observe(nullptr);
  return {};
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs(
        "usage: thread_share_bench SHAPE FORMAT THREADS [SEQUENCES [PROMPT_TOKENS [NEW_TOKENS "
        "[LOOP_US]]]]\n",
        stderr);
    return 2;
  }
  spillway::Arguments arguments{.shape = argv[1], .format = argv[2], .threads = std::atoi(argv[3])};
  if (argc > 4) arguments.sequences = std::atoll(argv[4]);
  if (argc > 5) arguments.prompt_tokens = std::atoll(argv[5]);
  if (argc > 6) arguments.new_tokens = std::atoll(argv[6]);
  if (argc > 7) arguments.loop_seconds = 1e-6 * std::atof(argv[7]);
  const spillway::Status status = spillway::run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "thread_share_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
