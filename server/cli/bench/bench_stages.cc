#include "server/cli/bench/bench_stages.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "scheduler/planning/plan_json.h"
#include "server/cli/bench/bench_ceilings.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_run.h"
#include "server/cli/common/console.h"
#include "server/cli/flags/command_line.h"
#include "server/process_stats.h"

namespace spillway {

namespace {

void print(const BenchResult& result, int64_t stages) {
  const BenchFlags& flags = result.flags;
  const double rate = static_cast<double>(result.generated) / result.total_seconds;
  if (flags.json) {
    const nlohmann::ordered_json unknown;  // Of all ranks: each knows its own alone.
    const auto prompts = static_cast<double>(flags.sequences * flags.prompt_tokens);
    const auto decoded = static_cast<double>(result.generated - flags.sequences);
    const nlohmann::ordered_json json = {
        {"model", result.model},
        {"stages", stages},
        {"plan", plan_json(result.plan)},
        {"format", result.plan.formats_text()},
        {"sequences", flags.sequences},
        {"prompt_tokens", flags.prompt_tokens},
        {"new_tokens", flags.new_tokens},
        {"projected", result.cut.has_value()},
        {"prefill_seconds", result.prefill_seconds},
        {"decode_seconds", result.decode_seconds},
        {"total_seconds", result.total_seconds},
        {"prefill_tokens_per_second", ratio(prompts, result.prefill_seconds)},
        {"decode_tokens_per_second", ratio(decoded, result.decode_seconds)},
        {"generated_tokens", result.generated},
        {"tokens_per_second", rate},
        {"predicted_tokens_per_second",
         result.predicted ? nlohmann::ordered_json(*result.predicted) : nlohmann::ordered_json()},
        {"peak_host_bytes_of_rank_0", result.peak_host_bytes},
        {"peak_host_bytes", unknown},
        {"peak_device_bytes", unknown},
        {"disk_bytes_read", unknown},
        {"disk_bytes_written", unknown},
        {"bytes_by_tier", unknown},
        {"bound", unknown},
        {"efficiency", unknown},
        {"efficiency_of_kernels", unknown},
        {"hardware", unknown},
    };
    std::cout << json.dump() << std::endl;
    return;
  }
  std::cout << text_line("%s in %s on %lld stages, %lld sequences of %lld + %lld tokens",
                         result.model.c_str(), result.plan.formats_text().c_str(),
                         static_cast<long long>(stages), static_cast<long long>(flags.sequences),
                         static_cast<long long>(flags.prompt_tokens),
                         static_cast<long long>(flags.new_tokens))
            << text_line("%.2f tokens/s%s: prompts %.1f s, decode %.1f s", rate,
                         result.cut ? " (projected)" : "", result.prefill_seconds,
                         result.decode_seconds)
            << (result.predicted ? text_line("predicted %.2f tokens/s: measured is %.2f of it",
                                             *result.predicted, rate / *result.predicted)
                                 : std::string())
            << std::flush;
}

}  // namespace

Status bench_stages(BenchFlags flags, EngineFlags engine, const std::string& model,
                    StageRank& rank) {
  RuntimeOptions options;
  const auto log = std::make_shared<SweepLog>();
  options.log = log;
  options.wishes = bench_wishes(&flags, &engine);
  int64_t& prefill = options.wishes.prefill_tokens_max;  // Of one sub-block's sweep
  if (prefill > 0) prefill = std::max(flags.prompt_tokens, prefill / engine.stages);
  options.say = say;
  const std::vector<RequestGroup> workload = {
      {flags.prompt_tokens, flags.new_tokens, flags.sequences}};
  SPILLWAY_ASSIGN_OR_RETURN(
      const StartedStages started,
      as_input(open_stages(rank, model, engine, std::move(options), workload)));
  const std::unique_ptr<Runtime>& runtime = started.runtime;
  SPILLWAY_RETURN_IF_ERROR(check_bench(runtime->shape(), runtime->plan(), &flags));
  BenchResult result;
  result.flags = flags;
  result.model = runtime->model_name();
  result.plan = runtime->plan();
  say("Warming up");
  const BenchFlags warm_up = warm_up_of(flags, runtime->shape(), uses_disk(runtime->plan()));
  SPILLWAY_RETURN_IF_ERROR(run_bench_block(warm_up, *runtime, *log, nullptr, &result));
  say("Running");
  SPILLWAY_RETURN_IF_ERROR(run_bench_block(flags, *runtime, *log, nullptr, &result));
  result.peak_host_bytes = peak_resident_bytes();
  if (started.predicted) result.predicted = started.predicted->tokens_per_second();
  print(result, engine.stages);
  return {};
}

}  // namespace spillway
