#include "server/commands/bench.h"

#include <algorithm>
#include <iostream>

#include "server/commands/bench_ceilings.h"
#include "server/commands/bench_report.h"
#include "server/commands/bench_run.h"
#include "server/config/command_line.h"
#include "server/hardware_cache.h"
#include "server/machine.h"
#include "server/plan_cost.h"
#include "server/process_stats.h"

namespace spillway {

namespace {

constexpr int64_t kPrefillTokensMax = 16384;  // Of one sweep; bounds the activations.

// What the cost model says of this run, from what `spillway profile` left; nothing without that, or
// where there is no home for it.
Status predict_run(const EngineFlags& engine, Runtime& runtime, BenchResult* result) {
  const auto cached = cached_profile(runtime.device(), scratch_directory(engine.disk_dir));
  if (cached.status().code() == Code::kNotFound) return {};
  SPILLWAY_RETURN_IF_ERROR(cached.status());
  const std::optional<HardwareProfile>& profile = cached.value();
  if (!profile) return {};
  const BenchFlags& flags = result->flags;
  const RequestGroup group{flags.prompt_tokens, flags.new_tokens, flags.sequences};
  SPILLWAY_ASSIGN_OR_RETURN(const Prediction found,
                            predict(runtime, *profile, std::span(&group, 1), result->overlap));
  result->predicted = found.tokens_per_second();
  return {};
}

Status bench(BenchFlags flags, const EngineFlags& engine, const std::string& model) {
  RuntimeOptions options;
  options.log = std::make_shared<SweepLog>();
  options.prefill_tokens_max = std::min(kPrefillTokensMax, flags.sequences * flags.prompt_tokens);
  options.prompt_tokens = flags.prompt_tokens;
  options.new_tokens = flags.new_tokens;
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  EngineFlags with_block = engine;
  if (!with_block.block && flags.sequences > 0) with_block.block = flags.sequences;
  SPILLWAY_ASSIGN_OR_RETURN(const auto runtime, Runtime::open(model, with_block, options));
  SPILLWAY_RETURN_IF_ERROR(check_bench(flags, runtime->shape()));
  if (flags.sequences == 0) flags.sequences = runtime->plan().sequences_at_once;

  BenchResult result;
  result.flags = flags;
  result.model = runtime->model_name();
  result.device = runtime->device().name();
  result.own_memory = !runtime->device().shares_host_memory();
  result.plan = runtime->plan();
  result.overlap = !engine.no_overlap;
  options.say("Warming up");
  const BenchFlags warm_up = warm_up_of(flags, runtime->shape(), uses_disk(runtime->plan()));
  SPILLWAY_RETURN_IF_ERROR(run_bench_block(warm_up, *runtime, *options.log, &result));
  options.say("Measuring this machine's ceilings");
  SPILLWAY_RETURN_IF_ERROR(measure_ceilings(flags, *runtime, &result));
  options.say("Running");
  SPILLWAY_RETURN_IF_ERROR(run_bench_block(flags, *runtime, *options.log, &result));
  hold_against_bound(*runtime, &result);
  // The measured result stands without it.
  const Status predicted = predict_run(engine, *runtime, &result);
  if (!predicted.ok()) options.say("warning: no prediction: " + std::string(predicted.message()));
  result.peak_host_bytes = peak_resident_bytes();
  if (result.own_memory) {
    const MemoryInfo memory = runtime->device().memory();
    result.peak_device_bytes = memory.total_bytes - memory.free_bytes;
  }
  if (flags.json) {
    std::cout << bench_json(result) << std::endl;
  } else {
    std::cout << bench_table(result) << std::flush;
  }
  return {};
}

}  // namespace

int run_bench(const BenchFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("bench", bench(flags, engine, model));
}

}  // namespace spillway
