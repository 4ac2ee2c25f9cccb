#include "server/cli/bench/bench.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "server/cli/bench/bench_ceilings.h"
#include "server/cli/bench/bench_check.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_run.h"
#include "server/cli/bench/bench_stages.h"
#include "server/cli/common/console.h"
#include "server/cli/common/stage_command.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/flags/engine_settings.h"
#include "server/process_stats.h"
#include "server/start_plan.h"

namespace spillway {

namespace {

// Records the run's peak memory so far, excluding the meter's own `meter_bytes`.
void note_peaks(Runtime& runtime, uint64_t meter_bytes, BenchResult* result) {
  const uint64_t peak = peak_resident_bytes();
  result->peak_host_bytes = std::max(result->peak_host_bytes, peak - std::min(peak, meter_bytes));
  if (!result->plan.discrete) return;
  const MemoryInfo memory = runtime.device().memory();
  result->peak_device_bytes = std::max<uint64_t>(result->peak_device_bytes, memory.peak_bytes);
  result->other_device_bytes = memory.total_bytes - memory.free_bytes - memory.taken_bytes;
}

// Measures a device's ceilings with all memory that it has left: the run's budget is lifted for
// these seconds, and the run's recorded peak excludes them.
Result<MeasuredCeilings> measure_beside_budget(const BenchFlags& flags, Runtime& runtime,
                                               size_t host_bytes, bool after_run) {
  Device& device = runtime.device();
  device.limit_memory(0);
  Result<MeasuredCeilings> measured = measure_ceilings(flags, runtime, host_bytes, after_run);
  device.limit_memory(runtime.plan().device_limit_bytes);
  return measured;
}

Status bench(BenchFlags flags, EngineFlags engine, const std::string& model) {
  RuntimeOptions options;
  options.log = std::make_shared<SweepLog>();
  options.wishes = bench_wishes(&flags, &engine);
  options.say = say;
  SPILLWAY_ASSIGN_OR_RETURN(
      const StartedRuntime started,
      as_input(open_planned(model, engine, options,
                            {{flags.prompt_tokens, flags.new_tokens, flags.sequences}})));
  Runtime* const runtime = started.runtime.get();
  SPILLWAY_RETURN_IF_ERROR(check_bench(runtime->shape(), runtime->plan(), &flags));

  BenchResult result;
  result.flags = flags;
  result.model = runtime->model_name();
  result.device = runtime->device().name();
  result.plan = runtime->plan();
  say("Warming up");
  const BenchFlags warm_up = warm_up_of(flags, runtime->shape(), uses_disk(runtime->plan()));
  SPILLWAY_RETURN_IF_ERROR(run_bench_block(warm_up, *runtime, *options.log, nullptr, &result));
  say("Measuring this machine's ceilings");
  note_peaks(*runtime, 0, &result);
  const size_t host_bytes = ceiling_bytes(result.plan);
  const std::string note = result.plan.discrete ? "" : caches_note(host_bytes);
  if (!note.empty()) say(note);
  SPILLWAY_ASSIGN_OR_RETURN(result.before,
                            measure_beside_budget(flags, *runtime, host_bytes, false));
  std::optional<BenchMeter> meter;
  if (!result.plan.discrete) {
    const size_t memory_bytes = uses_disk(runtime->plan()) ? 0 : host_bytes;
    SPILLWAY_ASSIGN_OR_RETURN(BenchMeter opened, BenchMeter::open(runtime->device(), memory_bytes));
    meter.emplace(std::move(opened));
  }
  say("Running");
  SPILLWAY_RETURN_IF_ERROR(
      run_bench_block(flags, *runtime, *options.log, meter ? &*meter : nullptr, &result));
  note_peaks(*runtime, meter ? meter->bytes() : 0, &result);
  result.prefill_target_at_end = runtime->scheduler().stats().prefill_target;
  meter.reset();
  // Whoever ends it now, for time, has this.
  std::string ran = text_line("Ran %.1f s%s, %.1f tokens/s; measuring the ceilings again",
                              result.measured_seconds(), result.cut ? " (projected)" : "",
                              static_cast<double>(result.generated) / result.total_seconds);
  ran.pop_back();  // The line's end
  say(ran);
  // A failure here does not lose the run.
  const Result<MeasuredCeilings> after = measure_beside_budget(flags, *runtime, host_bytes, true);
  if (!after.ok()) {
    say("bench: the ceilings are those before the run: " + std::string(after.status().message()));
  }
  result.after = after.ok() ? after.value() : result.before;
  result.ceilings = ceilings_of_run(result);
  hold_against_bound(*runtime, &result);
  if (started.predicted) result.predicted = started.predicted->tokens_per_second();
  if (flags.json) {
    std::cout << bench_json(result) << std::endl;
  } else {
    std::cout << bench_table(result) << std::flush;
  }
  return flags.check ? check_result(result) : Status();
}

struct State {
  std::string model;
  BenchFlags flags;
  EngineFlags engine;
};

}  // namespace

int run_bench(const BenchFlags& flags, const EngineFlags& engine, const std::string& model) {
  return report("bench", bench(flags, engine, model));
}

Command bench_command() {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "bench";
  command.summary = "time a block of equal sequences against this machine's bound";
  command.description =
      "Runs a block of equal sequences and prints tokens/s, beside bounds of the time from rates "
      "measured in the same process: the peaks of this CPU's instructions, memory, disk and link "
      "(efficiency), and the matrix products and attention of our own kernels (of our kernels). "
      "Efficiency is bound over measured time; the bound takes each sweep's slowest resource, and "
      "a second one, which no schedule can beat, the slowest resource of the whole run.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  Settings& settings = command.settings;
  settings.group("Benchmark");
  settings.add_integer("prompt-tokens", &state->flags.prompt_tokens, 1, 1 << 20,
                       "tokens of each prompt");
  settings.add_integer("new-tokens", &state->flags.new_tokens, 1, 1 << 20,
                       "tokens to generate for each");
  settings.add_integer("sequences", &state->flags.sequences, 0, 65536,
                       "how many at once; 0: as many as the block and the KV cache hold");
  settings.add_integer("requests", &state->flags.requests, 0, 1 << 20,
                       "run so many, more than the block holds, instead of one block, and report "
                       "the time between the first end and the last begin besides; 0: one block");
  settings.add_integer("decode-steps", &state->flags.decode_steps, 0, 1 << 20,
                       "stop after so many decode steps of the whole block and project the rest "
                       "from them; 0: run all");
  settings.add_switch("json", &state->flags.json, "print one JSON object");
  settings.add_switch("check", &state->flags.check,
                      "exit with 1 where the run beat a bound, which makes its efficiency invalid, "
                      "or a kernel is below its least share of what the hardware gives");
  add_engine_flags(settings, &state->engine);
  command.check = [state] {
    if (state->flags.requests > 0 && state->flags.decode_steps > 0) {
      return invalid_argument(
          "--decode-steps is for one block, and --requests for a stream of them; give one of the "
          "two");
    }
    if (state->flags.requests > 0 && state->engine.draft != "off") {
      return invalid_argument(
          "--requests counts the tokens of its steady part by sweeps, of which one with a draft "
          "has "
          "more than it keeps; leave out --draft, or --requests");
    }
    if (state->engine.stages > 1 && state->flags.check) {
      return invalid_argument(
          "--check holds a run against one machine's bounds, and --stages has several; leave out "
          "one "
          "of the two");
    }
    return validate(state->engine);
  };
  command.run = [state] {
    std::shared_ptr<StageRank> rank;
    if (const auto done = start_stages("bench", state->model, state->engine, &rank)) return *done;
    if (rank == nullptr) return run_bench(state->flags, state->engine, state->model);
    return report("bench", bench_stages(state->flags, state->engine, state->model, *rank));
  };
  return command;
}

}  // namespace spillway
