#include "server/stages/stage_search.h"

#include <algorithm>

#include "kernels/base/units.h"
#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "scheduler/planning/machine.h"
#include "scheduler/planning/plan_search.h"
#include "server/expected_workload.h"

namespace spillway {

namespace {

// Bytes a second from one stage to the next, which are not measured: rows are few, and what they
// take is a small part of a sweep.
constexpr double kNetworkOneHost = 1.5e9, kNetworkHosts = 1.25e9;

bool all_in_memory(const StagedPlan& found) {
  return std::all_of(found.plans.begin(), found.plans.end(), [](const Plan& plan) {
    const auto away = [&](const TierBytes& bytes) {
      return bytes.disk + (plan.discrete ? bytes.host : 0);
    };
    return away(plan.weights) + away(plan.kv) == 0;
  });
}

std::string line_of(const StagedPlan& found, std::span<const RequestGroup> workload) {
  const StagePrediction& prediction = found.prediction;
  const Plan& plan = found.plans[0];
  return "Plan for " + workload_text(workload) + ": a block of " +
         std::to_string(plan.block_sequences()) + " sequences, " +
         std::to_string(plan.prefill_tokens()) + " prompt tokens a sweep; " +
         format_rate(prediction.tokens_per_second()) + " tokens/s predicted";
}

// A profile is of the processors on which it was measured: of a process that the launcher has bound
// to some, on these.
std::string profile_command_of(const EngineFlags& flags, const RankSelf& process) {
  std::string command = profile_command_text(flags);
  command.insert(command.size() - 1, " --threads " + std::to_string(flags.threads));
  if (!process.bound) return command;
  std::string processors;
  for (const int one : process.processors) {
    processors += (processors.empty() ? "" : ",") + std::to_string(one);
  }
  return command.insert(1, "taskset -c " + processors + " ");
}

}  // namespace

StageMachineSeen see_stage_machine(const OpenedModel& first, const EngineFlags& flags,
                                   const RankSelf& process, uint64_t disk_parts) {
  StageMachineSeen seen;
  seen.profile_command = profile_command_of(flags, process);
  const PlanMachine machine = machine_of(first, nullptr);
  seen.host_bytes = machine.host_budget.bytes;
  seen.device_bytes = machine.device_budget.bytes;
  Result<std::optional<HardwareProfile>> profile =
      rank_profile(*first.device, first.flags.ranks, flags);
  if (!profile.ok() || !profile.value()) return seen;
  seen.hardware = *std::move(profile).value();
  HardwareProfile::Disk& disk = seen.hardware->disk;
  const auto share = static_cast<double>(disk_parts);
  // What is free now is no measurement of then, between whose bounds it would have to lie.
  const auto as_it_is = [](Figure* figure, double value) {
    figure->value = figure->low = figure->high = value;
  };
  as_it_is(&disk.free_bytes, disk.free_bytes.value / share);
  const auto free_of = [&](Figure* free, const Figure& all) {
    as_it_is(free, std::min(free->value, all.value));
  };
  free_of(&seen.hardware->host.memory_free_bytes, seen.hardware->host.memory_bytes);
  free_of(&seen.hardware->compute.memory_free_bytes, seen.hardware->compute.memory_bytes);
  for (std::vector<DiskFigure>* figures : {&disk.read, &disk.write}) {
    for (DiskFigure& figure : *figures) {
      for (double* of : {&figure.rate.value, &figure.rate.low, &figure.rate.high}) *of /= share;
    }
  }
  return seen;
}

void write(const StageMachineSeen& seen, ByteWriter* writer) {
  writer->add_text(seen.hardware ? hardware_profile_json(*seen.hardware) : std::string());
  writer->add_text(seen.profile_command);
  writer->add(seen.host_bytes);
  writer->add(seen.device_bytes);
}

StageMachineSeen read_stage_machine(ByteReader* reader) {
  StageMachineSeen seen;
  const std::string profile = reader->get_text();
  seen.profile_command = reader->get_text();
  seen.host_bytes = reader->get<uint64_t>();
  seen.device_bytes = reader->get<uint64_t>();
  if (profile.empty()) return seen;
  Result<HardwareProfile> parsed = parse_hardware_profile(profile, "a stage's profile");
  if (parsed.ok()) seen.hardware = std::move(parsed).value();
  return seen;
}

Result<StageAnswer> search_stages(const StageQuestion& question,
                                  std::span<const std::string> names) {
  const OpenedModel& first = *question.first;
  std::vector<StageHost> hosts;
  for (size_t i = 0; i < question.machines.size(); ++i) {
    const StageMachineSeen& seen = question.machines[i];
    if (!seen.hardware) {
      return Status(Code::kNotFound, "there is no hardware profile of " + names[i] + " yet. Run " +
                                         seen.profile_command +
                                         " there once (about a minute), and plans are searched "
                                         "for.");
    }
    EngineFlags flags = first.flags;
    flags.host_memory_bytes = seen.host_bytes;
    if (seen.device_bytes > 0) flags.device_memory_bytes = seen.device_bytes;
    SPILLWAY_ASSIGN_OR_RETURN(const PlanMachine machine, machine_of_profile(*seen.hardware, flags));
    hosts.push_back({machine, &*seen.hardware});
  }
  std::vector<RequestGroup> workload = question.workload;
  cut_workload(first.model.shape(), &workload);
  const double network = question.one_host ? kNetworkOneHost : kNetworkHosts;
  const auto find = [&](const EngineFlags& flags) {
    return find_stage_plan(first.model, hosts, question.layers, flags, question.wishes, workload,
                           network);
  };
  StageAnswer answer;
  SPILLWAY_ASSIGN_OR_RETURN(answer.plan, find(first.flags));
  const bool any = workload[0].count == 0 || question.wishes.may_end_early;
  if (any && !first.flags.block && all_in_memory(answer.plan)) {
    EngineFlags larger = first.flags;
    const auto stages = static_cast<int64_t>(hosts.size());
    larger.block = std::max(answer.plan.plans[0].block_sequences(), kBlockInPlace * stages);
    larger.prefill_tokens = answer.plan.plans[0].prefill_tokens();
    Result<StagedPlan> plan = find(larger);
    if (plan.ok() && all_in_memory(plan.value())) answer.plan.plans = std::move(plan->plans);
  }
  answer.line = line_of(answer.plan, workload);
  return answer;
}

}  // namespace spillway
