#include "server/cli/plan/plan_simulate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "kernels/base/units.h"
#include "policy/placement_program.h"
#include "policy/simulation/simulated_sweep.h"
#include "policy/simulation/simulated_trace.h"
#include "server/cli/common/console.h"

namespace spillway {

namespace {

using nlohmann::json;

constexpr double kGigabyte = 1e9;

// Waits below this share of the run are not shown.
constexpr double kShown = 0.001;

// A ring of 0 bytes means that the plan streams nothing of the kind, but a cluster's placement may
// need one all the same.
double ring_of(uint64_t bytes) {
  return bytes == 0 ? StagingRings::kUnlimited : static_cast<double>(bytes);
}

StagingRings rings_of(const Plan& plan) {
  return {.weights_from_disk = ring_of(plan.placement.host_rings.weights),
          .weights_to_device = ring_of(plan.placement.device_rings.weights),
          .kv_from_disk = ring_of(plan.placement.host_rings.kv),
          .kv_to_device = ring_of(plan.placement.device_rings.kv),
          .activations_from_disk = ring_of(plan.placement.host_rings.activations),
          .activations_to_device = ring_of(plan.placement.device_rings.activations)};
}

// The plan for one of `machines`: each has a part of the weights and, with as many blocks in flight
// as machines, as much cache as one machine alone, so that more of both stays in fast memory. Seen
// from the whole model, the weights stay and all other memory grows with the number of machines.
CostedPlan plan_of_each(const CostedChoice& choice, const MachineRates& rates, int64_t machines) {
  if (machines == 1) return choice.costed;
  const Plan& plan = *choice.plan;
  const auto count = static_cast<uint64_t>(machines);
  PlacementRoom room;
  room.weights = plan.weights.device + plan.weights.host + plan.weights.disk;
  room.kv = count * (plan.kv.device + plan.kv.host + plan.kv.disk);
  room.device = count * (plan.weights.device + plan.kv.device);
  room.host = count * (plan.weights.host + plan.kv.host);
  room.disk = room.weights + room.kv;
  const auto shares = best_shares(choice.costed, rates, choice.sweeps, room);
  if (!shares.ok()) return choice.costed;
  CostedPlan found = choice.costed;
  const auto part = [&](double share) {
    return static_cast<uint64_t>(share * static_cast<double>(room.weights));
  };
  found.weights_from_disk = part(shares->weights.disk);
  found.weights_on_host = part(shares->weights.host);
  found.kv_on_host = shares->kv.host;
  found.kv_on_disk = shares->kv.disk;
  const auto seconds = [&](const CostedPlan& of) {
    return predict(of, rates, choice.sweeps).seconds();
  };
  return seconds(found) < seconds(choice.costed) ? found : choice.costed;
}

struct ClusterRow {
  int64_t machines;
  double tokens_per_second;
};

std::string cluster_text(const PlanFlags& flags, const std::vector<ClusterRow>& rows) {
  const double one = rows.front().tokens_per_second;
  std::string text =
      text_line("machines     tokens/s   times one   efficiency   (%.3g GB/s between them)",
                flags.cluster_network);
  for (const ClusterRow& row : rows) {
    const double times = row.tokens_per_second / one;
    text += text_line("%8lld %12.4g %11.2f %12.2f", static_cast<long long>(row.machines),
                      row.tokens_per_second, times, times / static_cast<double>(row.machines));
  }
  return text;
}

json cluster_json(const PlanFlags& flags, const std::vector<ClusterRow>& rows) {
  const double one = rows.front().tokens_per_second;
  json machines = json::array();
  for (const ClusterRow& row : rows) {
    machines.push_back(
        {{"machines", row.machines},
         {"tokens_per_second", row.tokens_per_second},
         {"efficiency", row.tokens_per_second / one / static_cast<double>(row.machines)}});
  }
  return {{"network_bytes_per_second", flags.cluster_network * kGigabyte}, {"runs", machines}};
}

}  // namespace

bool simulates(const PlanFlags& flags) {
  return flags.simulate || flags.cluster > 0;
}

Status check_simulation(const PlanFlags& flags, const EngineFlags& engine) {
  if (!engine.trace.empty() && !simulates(flags)) {
    return invalid_argument(
        "--trace: a plan runs nothing that could be traced; add --simulate for a simulated "
        "timeline, or give it to the command that carries the plan out");
  }
  return {};
}

std::string simulated_text(const SimulatedRun& run) {
  std::string text = text_line(
      "%s tokens/s (prefill %s, decode %s)", format_rate(run.tokens_per_second()).c_str(),
      format_seconds(run.prefill_seconds).c_str(), format_seconds(run.decode_seconds).c_str());
  // Time of all machines together.
  const double whole = run.seconds() * static_cast<double>(run.processors.size());
  for (const SimulatedRun::Part& wait : run.waits) {
    if (wait.seconds < kShown * whole) continue;
    text += text_line("  waits for %-34s %12s %5.1f %%", wait.name.c_str(),
                      format_seconds(wait.seconds).c_str(), 100 * wait.seconds / whole);
  }
  for (const SimulatedRun::Part& part : run.resources) {
    if (part.seconds <= 0) continue;
    text += text_line("  busy: %-38s %12s %5.1f %%", part.name.c_str(),
                      format_seconds(part.seconds).c_str(), 100 * part.seconds / run.seconds());
  }
  if (run.sweeps_simulated < run.sweeps) {
    text +=
        text_line("  (%lld sweeps simulated, which stand for %lld)",
                  static_cast<long long>(run.sweeps_simulated), static_cast<long long>(run.sweeps));
  }
  return text;
}

std::string simulated_json(const SimulatedRun& run) {
  const auto parts = [](const std::vector<SimulatedRun::Part>& all) {
    json object = json::object();
    for (const SimulatedRun::Part& part : all) object[part.name] = part.seconds;
    return object;
  };
  const json object = {{"seconds", run.seconds()},
                       {"prefill_seconds", run.prefill_seconds},
                       {"decode_seconds", run.decode_seconds},
                       {"tokens_per_second", run.tokens_per_second()},
                       {"generated_tokens", run.generated},
                       {"waits", parts(run.waits)},
                       {"resources", parts(run.resources)},
                       {"sweeps", run.sweeps},
                       {"sweeps_simulated", run.sweeps_simulated}};
  return object.dump();
}

Status write_trace(const SimulatedRun& run, const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Trace> trace, Trace::open(path));
  write_timeline(run, *trace);
  return {};
}

Status add_simulation(const PlanFlags& flags, const EngineFlags& engine, const CostedChoice& choice,
                      const HardwareProfile& hardware, std::string* text) {
  SPILLWAY_ASSIGN_OR_RETURN(const MachineRates rates, MachineRates::of(hardware, choice.costed));
  const StagingRings rings = rings_of(*choice.plan);
  const int64_t machines = std::min(flags.cluster, choice.costed.shape.layers);
  const SimulatedRun one = simulate(choice.costed, rates, choice.sweeps, rings);
  std::vector<ClusterRow> rows = {{1, one.tokens_per_second()}};
  std::optional<SimulatedRun> most;  // The run with the most machines
  for (int64_t count = 2; count <= machines; ++count) {
    const CostedPlan plan = plan_of_each(choice, rates, count);
    most = simulate(plan, rates, choice.sweeps, rings, {count, flags.cluster_network * kGigabyte});
    rows.push_back({count, most->tokens_per_second()});
  }
  if (!engine.trace.empty()) {
    SPILLWAY_RETURN_IF_ERROR(write_trace(most ? *most : one, engine.trace).at("--trace"));
  }
  if (!flags.json) {
    *text += "simulated: " + simulated_text(one);
    if (flags.cluster > 0) *text += cluster_text(flags, rows);
    return {};
  }
  json object = json::parse(*text);
  object["simulated"] = json::parse(simulated_json(one));
  if (flags.cluster > 0) object["simulated"]["cluster"] = cluster_json(flags, rows);
  *text = object.dump(2) + "\n";
  return {};
}

}  // namespace spillway
