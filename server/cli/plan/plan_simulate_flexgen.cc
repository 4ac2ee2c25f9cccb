// `spillway plan --cost-model flexgen --simulate`
#include <iostream>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "offload/config_files.h"
#include "policy/flexgen/flexgen_schedule.h"
#include "server/cli/batch/workload_file.h"
#include "server/cli/common/console.h"
#include "server/cli/plan/plan_flexgen.h"
#include "server/cli/plan/plan_simulate.h"

namespace spillway {

namespace {

using nlohmann::json;

constexpr const char* kHardware = "t4-16gb";  // FlexGen's hardware

Status check(const PlanFlags& flags, const EngineFlags& engine) {
  if (flags.cluster > 0) {
    return invalid_argument("--cluster: FlexGen's schedule is simulated on one machine");
  }
  if (!engine.micro_batch || !engine.block || !engine.weights || !engine.kv ||
      !engine.activations) {
    return invalid_argument(
        "--cost-model flexgen --simulate runs a policy that is given: --micro-batch, --block, "
        "--weights, --kv and --activations");
  }
  if (*engine.block % *engine.micro_batch != 0) {
    return invalid_argument("--cost-model flexgen: --block " + std::to_string(*engine.block) +
                            " is not a multiple of --micro-batch " +
                            std::to_string(*engine.micro_batch));
  }
  if ((*engine.activations)[1] != 100 && (*engine.activations)[0] != 100) {
    return invalid_argument(
        "--activations: FlexGen keeps them all on the device or all in host memory: 100,0,0 or "
        "0,100,0");
  }
  return {};
}

}  // namespace

Status simulate_as_flexgen(const PlanFlags& flags, const EngineFlags& engine,
                           const std::string& model) {
  SPILLWAY_RETURN_IF_ERROR(check(flags, engine));
  FlexgenRun run;
  SPILLWAY_ASSIGN_OR_RETURN(run.shape, find_model_shape(model));
  SPILLWAY_ASSIGN_OR_RETURN(
      const HardwareProfile hardware,
      find_hardware_profile(flags.hardware.empty() ? kHardware : flags.hardware));
  SPILLWAY_RETURN_IF_ERROR(check_lengths(flags.prompt_tokens, flags.new_tokens, run.shape));
  run.prompt_tokens = flags.prompt_tokens;
  run.new_tokens = flags.new_tokens;
  run.block = {*engine.micro_batch, *engine.block / *engine.micro_batch};
  run.placement = {shares_of(*engine.weights), shares_of(*engine.kv),
                   shares_of(*engine.activations)};
  run.overlap = !engine.no_overlap;
  // As in its benchmarks, weights are not pinned if some of them are on disk.
  run.pinned_weights = (*engine.weights)[2] == 0;
  SPILLWAY_ASSIGN_OR_RETURN(const SimulatedRun theirs, simulate_flexgen(run, hardware));
  SPILLWAY_ASSIGN_OR_RETURN(const SimulatedRun ours, simulate_our_schedule(run, hardware));
  FlexgenRun other = run;
  other.fewer_batches = true;
  SPILLWAY_ASSIGN_OR_RETURN(const SimulatedRun measured, simulate_flexgen(other, hardware));
  other = run;
  other.overlap = false;
  SPILLWAY_ASSIGN_OR_RETURN(const SimulatedRun in_turn, simulate_our_schedule(other, hardware));
  if (!engine.trace.empty()) {
    SPILLWAY_RETURN_IF_ERROR(write_trace(theirs, engine.trace).at("--trace"));
  }
  if (flags.json) {
    const json object = {
        {"simulated", json::parse(simulated_json(theirs))},
        {"simulated_fewer_batches", json::parse(simulated_json(measured))},
        {"simulated_our_schedule_no_overlap", json::parse(simulated_json(in_turn))},
        {"simulated_our_schedule", json::parse(simulated_json(ours))},
        {"hardware", hardware.name},
        {"cost_model", "flexgen"}};
    std::cout << object.dump(2) << std::endl;
    return {};
  }
  const PerTier bytes = flexgen_weight_bytes(run);
  const double whole = (bytes.device + bytes.host + bytes.disk) / 100;
  std::cout << text_line(
                   "%s on %s, %lld + %lld tokens, %lld x %lld sequences; weights really on "
                   "device, host, disk: %.0f, %.0f, %.0f %%",
                   run.shape.name.c_str(), hardware.name.c_str(),
                   static_cast<long long>(run.prompt_tokens),
                   static_cast<long long>(run.new_tokens),
                   static_cast<long long>(run.block.micro_batch),
                   static_cast<long long>(run.block.micro_batches), bytes.device / whole,
                   bytes.host / whole, bytes.disk / whole)
            << "simulated as FlexGen runs it: " << simulated_text(theirs)
            << text_line("  as its benchmarks with fewer_batch measure it: %s tokens/s",
                         format_rate(measured.tokens_per_second()).c_str())
            << "simulated by our schedule in the same places: " << simulated_text(ours)
            << text_line("  without overlap: %s tokens/s",
                         format_rate(in_turn.tokens_per_second()).c_str())
            << std::flush;
  return {};
}

}  // namespace spillway
