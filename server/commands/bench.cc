#include "server/commands/bench.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/ceilings.h"
#include "policy/bound.h"
#include "server/config/command_line.h"
#include "server/process_stats.h"
#include "server/runtime.h"

namespace spillway {

namespace {

constexpr int64_t kPrefillTokensMax = 16384;  // Of one sweep; bounds the activations.

// When each sequence got its first and last token, and how the last one ended.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t sequences) : left_(sequences) {}
  void first_token() {
    const std::lock_guard lock(mutex_);
    last_first_token_ = steady_seconds();
  }
  void finished(const Finish& finish) {
    const std::lock_guard lock(mutex_);
    if (!finish.status.ok() && status_.ok()) status_ = finish.status;
    generated_ += finish.usage.generated_tokens;
    end_ = steady_seconds();
    if (--left_ == 0) done_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
    return status_;
  }
  double last_first_token() const { return last_first_token_; }
  double end() const { return end_; }
  int64_t generated() const { return generated_; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  int64_t left_;
  int64_t generated_ = 0;
  double last_first_token_ = 0, end_ = 0;
  Status status_;
};

class BenchSink final : public TokenSink {
 public:
  explicit BenchSink(Stopwatch* watch) : watch_(watch) {}
  bool on_token(int32_t, const TokenLogprobs*) override {
    if (!std::exchange(started_, true)) watch_->first_token();
    return true;
  }
  void on_finish(const Finish& finish) override { watch_->finished(finish); }

 private:
  Stopwatch* watch_;
  bool started_ = false;
};

struct BenchResult {
  double prefill_seconds = 0, decode_seconds = 0, total_seconds = 0;
  int64_t generated = 0;
  std::vector<SweepWork> sweeps;
  Ceilings ceilings;
  std::vector<MatrixCeiling> matrix;  // Beside ceilings.matrix
  Bound bound, prefill_bound, decode_bound;
  IoCounts io;
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

Status check_flags(const BenchFlags& flags, const ModelShape& shape) {
  if (flags.prompt_tokens < 1 || flags.new_tokens < 1 || flags.sequences < 1 ||
      flags.sequences > 65536) {
    return invalid_argument("--prompt-tokens, --new-tokens and --sequences must be at least 1");
  }
  if (flags.prompt_tokens + flags.new_tokens > shape.positions) {
    return invalid_argument("the model has " + std::to_string(shape.positions) +
                            " positions; --prompt-tokens + --new-tokens is " +
                            std::to_string(flags.prompt_tokens + flags.new_tokens));
  }
  return {};
}

// The rates that the bound needs: every matrix at the heights that the run will have.
void measure_ceilings(const BenchFlags& flags, Runtime& runtime, BenchResult* result) {
  constexpr int64_t kPrefillRows = 512;  // More rows are no faster.
  const ModelShape& shape = runtime.shape();
  std::vector<int64_t> heights = {std::min(flags.sequences, kPrefillRows)};
  const int64_t prefill = std::min(flags.sequences * flags.prompt_tokens, kPrefillRows);
  if (prefill != heights.front()) heights.push_back(prefill);
  double best = 0;
  for (const LinearShape& linear : linear_shapes(shape)) {
    for (int64_t rows : heights) {
      // The head runs on at most 64 rows at a time.
      if (linear.head && rows > 64 && heights.size() > 1 && rows == prefill) continue;
      const MatrixCeiling ceiling = measure_matrix(runtime.device(), runtime.plan().format, rows,
                                                   linear.outputs, linear.inputs);
      result->ceilings.matrix.push_back({rows, linear.outputs, linear.inputs, ceiling.best()});
      result->matrix.push_back(ceiling);
      best = std::max(best, ceiling.best());
    }
  }
  result->ceilings.attention_flops_per_second = best;
  result->ceilings.memory_bytes_per_second = measure_memory_read(runtime.device());
}

Status run_block(const BenchFlags& flags, Runtime& runtime, SweepLog& log, BenchResult* result) {
  Stopwatch watch(flags.sequences);
  log.take();
  const IoCounts before = io_counts();
  std::vector<Request> requests(static_cast<size_t>(flags.sequences));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = prompt_of(runtime.shape(), static_cast<int64_t>(i), flags.prompt_tokens);
    requests[i].max_tokens = static_cast<int32_t>(flags.new_tokens);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = 0;
  }
  const double start = steady_seconds();
  for (Request& request : requests) {
    SPILLWAY_RETURN_IF_ERROR(runtime.scheduler()
                                 .submit(std::move(request), std::make_shared<BenchSink>(&watch))
                                 .status());
  }
  SPILLWAY_RETURN_IF_ERROR(watch.wait());
  result->prefill_seconds = watch.last_first_token() - start;
  result->decode_seconds = watch.end() - watch.last_first_token();
  result->total_seconds = watch.end() - start;
  result->generated = watch.generated();
  result->sweeps = log.take();
  result->io = io_counts() - before;
  return {};
}

void hold_against_bound(const Runtime& runtime, BenchResult* result) {
  const ModelShape& shape = runtime.shape();
  const BoundModel model{shape, runtime.plan().format,
                         kv_layout(shape, runtime.plan().kv_format).row_bytes() * 2 *
                             static_cast<size_t>(shape.kv_heads * shape.layers)};
  std::vector<SweepWork> prefill, decode;
  for (const SweepWork& work : result->sweeps) {
    (work.prompts > 0 ? prefill : decode).push_back(work);
  }
  result->bound = bound_of(model, result->ceilings, result->sweeps);
  result->prefill_bound = bound_of(model, result->ceilings, prefill);
  result->decode_bound = bound_of(model, result->ceilings, decode);
}

double seconds_of(const std::vector<SweepWork>& sweeps, bool prefill) {
  double seconds = 0;
  for (const SweepWork& work : sweeps) {
    if ((work.prompts > 0) == prefill) seconds += work.seconds;
  }
  return seconds;
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

nlohmann::json bound_json(const Bound& bound) {
  return {{"resource", bound.resource},
          {"seconds", bound.seconds},
          {"seconds_any_schedule", bound.seconds_any_schedule},
          {"compute_seconds", bound.compute_seconds},
          {"memory_seconds", bound.memory_seconds}};
}

nlohmann::json tier_json(uint64_t device) {
  return {{"device", device}, {"host", 0}, {"disk", 0}};
}

nlohmann::json plan_json(const RuntimePlan& plan) {
  return {{"version", 1},
          {"device", "cpu"},
          {"weights", {100, 0, 0}},
          {"kv", {100, 0, 0}},
          {"activations", {100, 0, 0}},
          {"block", plan.block_sequences},
          {"micro_batch_tokens", plan.micro_batch_tokens},
          {"format", dtype_name(plan.format)},
          {"kv_format", dtype_name(plan.kv_format)},
          {"kv_rule", "full"},
          {"host_memory_bytes", plan.budget_bytes}};
}

nlohmann::json hardware_json(const Runtime& runtime, const BenchResult& result) {
  nlohmann::json matrix = nlohmann::json::array();
  for (size_t i = 0; i < result.matrix.size(); ++i) {
    const MatrixRate& rate = result.ceilings.matrix[i];
    matrix.push_back({{"rows", rate.rows},
                      {"outputs", rate.outputs},
                      {"inputs", rate.inputs},
                      {"library_flops_per_second", result.matrix[i].library},
                      {"own_flops_per_second", result.matrix[i].ours}});
  }
  return {{"device", const_cast<Runtime&>(runtime).device().name()},
          {"memory_bytes_per_second", result.ceilings.memory_bytes_per_second},
          {"matrix", matrix}};
}

nlohmann::json to_json(const BenchFlags& flags, const Runtime& runtime, const BenchResult& r) {
  const RuntimePlan& plan = runtime.plan();
  const double prompt_tokens = static_cast<double>(flags.sequences * flags.prompt_tokens);
  const double decoded = static_cast<double>(r.generated - flags.sequences);
  nlohmann::json json = {
      {"model", runtime.model_name()},
      {"plan", plan_json(plan)},
      {"prompt_tokens", flags.prompt_tokens},
      {"new_tokens", flags.new_tokens},
      {"sequences", flags.sequences},
      {"load_seconds", plan.load_seconds},
      {"prefill_seconds", r.prefill_seconds},
      {"decode_seconds", r.decode_seconds},
      {"total_seconds", r.total_seconds},
      {"prefill_tokens_per_second", ratio(prompt_tokens, r.prefill_seconds)},
      {"decode_tokens_per_second", ratio(decoded, r.decode_seconds)},
      {"tokens_per_second", ratio(static_cast<double>(r.generated), r.total_seconds)},
      {"peak_device_bytes", 0},
      {"peak_host_bytes", peak_resident_bytes()},
      {"disk_bytes_read", r.io.read_bytes},
      {"disk_bytes_written", r.io.written_bytes},
      {"bytes_by_tier",
       {{"weights", tier_json(plan.weight_bytes)},
        {"kv", tier_json(plan.kv_bytes)},
        {"activations", tier_json(plan.buffer_bytes)}}},
      {"bound", bound_json(r.bound)},
      {"efficiency", ratio(r.bound.seconds, r.total_seconds)},
      {"prefill_bound", bound_json(r.prefill_bound)},
      {"prefill_efficiency", ratio(r.prefill_bound.seconds, seconds_of(r.sweeps, true))},
      {"decode_bound", bound_json(r.decode_bound)},
      {"decode_efficiency", ratio(r.decode_bound.seconds, seconds_of(r.sweeps, false))},
      {"predicted_tokens_per_second", nullptr},  // Until the cost model exists.
      {"projected", false},
      {"hardware", hardware_json(runtime, r)}};
  return json;
}

void print_table(const BenchFlags& flags, const Runtime& runtime, const BenchResult& r) {
  const auto line = [&](const char* name, double seconds, double tokens, const Bound& bound,
                        double efficiency) {
    std::printf("%-8s %10.2f s %10.1f tokens/s   bound %8.2f s (%s)   efficiency %.2f\n", name,
                seconds, ratio(tokens, seconds), bound.seconds, bound.resource.c_str(), efficiency);
  };
  std::printf("%s, %lld sequences of %lld + %lld tokens, weights %s, KV %s\n",
              runtime.model_name().c_str(), static_cast<long long>(flags.sequences),
              static_cast<long long>(flags.prompt_tokens), static_cast<long long>(flags.new_tokens),
              std::string(dtype_name(runtime.plan().format)).c_str(),
              std::string(dtype_name(runtime.plan().kv_format)).c_str());
  std::printf("loaded   %10.2f s   %s of weights, peak %s of host memory\n",
              runtime.plan().load_seconds, format_bytes(runtime.plan().weight_bytes).c_str(),
              format_bytes(peak_resident_bytes()).c_str());
  line("prefill", r.prefill_seconds, static_cast<double>(flags.sequences * flags.prompt_tokens),
       r.prefill_bound, ratio(r.prefill_bound.seconds, seconds_of(r.sweeps, true)));
  line("decode", r.decode_seconds, static_cast<double>(r.generated - flags.sequences),
       r.decode_bound, ratio(r.decode_bound.seconds, seconds_of(r.sweeps, false)));
  line("total", r.total_seconds, static_cast<double>(r.generated), r.bound,
       ratio(r.bound.seconds, r.total_seconds));
  std::printf("ceilings measured just before: memory %.1f GB/s, matrix products (GFLOP/s)\n",
              r.ceilings.memory_bytes_per_second / 1e9);
  for (size_t i = 0; i < r.matrix.size(); ++i) {
    const MatrixRate& rate = r.ceilings.matrix[i];
    std::printf("  %4lld x [%lld, %lld]: oneDNN %.0f, ours %.0f\n",
                static_cast<long long>(rate.rows), static_cast<long long>(rate.outputs),
                static_cast<long long>(rate.inputs), r.matrix[i].library / 1e9,
                r.matrix[i].ours / 1e9);
  }
}

Status bench(const BenchFlags& flags, const EngineFlags& engine, const std::string& model) {
  RuntimeOptions options;
  options.log = std::make_shared<SweepLog>();
  options.prefill_tokens_max =
      std::min(kPrefillTokensMax, std::max<int64_t>(1, flags.sequences * flags.prompt_tokens));
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  EngineFlags with_block = engine;
  if (!with_block.block) with_block.block = flags.sequences;
  SPILLWAY_ASSIGN_OR_RETURN(const auto runtime, Runtime::open(model, with_block, options));
  SPILLWAY_RETURN_IF_ERROR(check_flags(flags, runtime->shape()));
  BenchResult result;
  // A short run first: touches all memory once and compiles what oneDNN compiles at first use.
  BenchFlags warm = flags;
  warm.new_tokens = std::min<int64_t>(flags.new_tokens, 2);
  warm.prompt_tokens = std::min<int64_t>(flags.prompt_tokens, 16);
  options.say("Warming up and measuring this machine's ceilings");
  SPILLWAY_RETURN_IF_ERROR(run_block(warm, *runtime, *options.log, &result));
  measure_ceilings(flags, *runtime, &result);
  options.say("Running");
  SPILLWAY_RETURN_IF_ERROR(run_block(flags, *runtime, *options.log, &result));
  hold_against_bound(*runtime, &result);
  if (flags.json) {
    std::cout << to_json(flags, *runtime, result).dump(2) << std::endl;
  } else {
    print_table(flags, *runtime, result);
  }
  return {};
}

}  // namespace

int run_bench(const BenchFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("bench", bench(flags, engine, model));
}

}  // namespace spillway
