#include "server/cli/plan/plan_stages.h"

#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "scheduler/planning/plan_json.h"
#include "scheduler/planning/plan_search.h"
#include "scheduler/planning/profile_traits.h"
#include "scheduler/stages/stage_worker.h"
#include "server/cli/common/console.h"
#include "server/runtime.h"

namespace spillway {

namespace {

using nlohmann::ordered_json;

constexpr double kNetworkUnit = 1e9;  // GB/s

// Of a rank, in the prediction.
double busy_seconds(const StagedPlan& plan, size_t rank) {
  const int stage = stage_of_rank(static_cast<int>(rank), static_cast<int>(plan.plans.size()));
  return plan.prediction.busy_seconds[static_cast<size_t>(stage)];
}

Result<StagedPlan> staged(const ModelToPlan& model, const StagesReport& report, EngineFlags flags,
                          const PlanWishes& wishes, const std::vector<RequestGroup>& workload,
                          int64_t stages) {
  if (flags.stages != stages) flags.stage_layers.reset();
  flags.stages = stages;
  SPILLWAY_ASSIGN_OR_RETURN(const PlanMachine machine, machine_of_profile(report.hardware, flags));
  const auto count = static_cast<size_t>(stages);
  const uint64_t memory = machine.device.discrete()
                              ? machine.device_budget.bytes * static_cast<uint64_t>(flags.ranks)
                              : machine.host_budget.bytes;
  const std::vector<StageMachine> machines(count, {1, memory_for_layers(memory), 0, 0});
  SPILLWAY_ASSIGN_OR_RETURN(const auto layers, cut_layers(*model.table, flags, machines));
  const std::vector<StageHost> hosts(count, {machine, &report.hardware});
  return find_stage_plan(model, hosts, layers, flags, wishes, workload,
                         report.flags.cluster_network * kNetworkUnit);
}

std::string tiers_text(const TierBytes& bytes) {
  std::string text = format_bytes(bytes.device + bytes.host + bytes.disk);
  return bytes.disk == 0 ? text : text + " (" + format_bytes(bytes.disk) + " on disk)";
}

// How a command is told of the ranks that share a stage's layers.
std::string ranks_flag(const EngineFlags& flags) {
  if (flags.rank_count() == 1) return "";
  if (!flags.gpus) return " --ranks " + std::to_string(flags.ranks);
  std::string gpus;
  for (const int64_t gpu : *flags.gpus) gpus += (gpus.empty() ? "" : ",") + std::to_string(gpu);
  return " --gpus " + gpus;
}

// Of so many machines, for their names.
std::string hosts_text(size_t machines) {
  std::string text;
  for (size_t i = 1; i <= machines; ++i) text += (i == 1 ? "HOST" : ",HOST") + std::to_string(i);
  return text;
}

double network_share(const StagePrediction& found) {
  return found.seconds() > 0 ? found.network_seconds / found.seconds() : 0;
}

}  // namespace

Status find_stages(const std::string& model, const EngineFlags& flags,
                   const std::vector<RequestGroup>& workload, StagesReport* report) {
  SPILLWAY_ASSIGN_OR_RETURN(const DeviceTraits device, traits_of(report->hardware));
  ModelToPlanOptions options;
  options.say = say;
  SPILLWAY_ASSIGN_OR_RETURN(const ModelToPlan opened,
                            as_input(open_model_to_plan(model, flags, device, options)));
  report->model = opened.name;
  report->formats = opened.table->formats_text();
  PlanWishes wishes;
  for (const RequestGroup& group : workload) {
    wishes.prompt_tokens = std::max(wishes.prompt_tokens, group.prompt_tokens);
    wishes.new_tokens = std::max(wishes.new_tokens, group.new_tokens);
  }
  SPILLWAY_ASSIGN_OR_RETURN(report->plan,
                            staged(opened, *report, flags, wishes, workload, flags.stages));
  PlanQuestion question;
  question.model = model;
  question.flags = flags;
  question.flags.stages = 1;
  question.workload = workload;
  question.hardware = &report->hardware;
  question.opened = &opened;
  const Result<CostedChoice> one = find_plan(question);
  report->rows.push_back({1, one.ok() ? one->prediction.tokens_per_second() : 0});
  report->rows.push_back({flags.stages, report->plan.prediction.tokens_per_second()});
  const auto more = staged(opened, *report, flags, wishes, workload, flags.stages + 1);
  report->rows.push_back({flags.stages + 1, more.ok() ? more->prediction.tokens_per_second() : 0});
  return {};
}

std::string stages_text(const StagesReport& report) {
  const StagedPlan& plan = report.plan;
  const StagePrediction& found = plan.prediction;
  const size_t ranks = plan.plans.size();
  const int64_t sharing = plan.plans[0].shape.ranks;
  const std::string by =
      sharing > 1 ? ", " + std::to_string(sharing) + " ranks on each" : std::string();
  std::string text = text_line(
      "%s on %zu times %s%s: %s tokens/s predicted (prefill %s, decode %s)", report.model.c_str(),
      ranks, report.hardware.name.c_str(), by.c_str(),
      format_rate(found.tokens_per_second()).c_str(), format_seconds(found.prefill_seconds).c_str(),
      format_seconds(found.decode_seconds).c_str());
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Plan& one = plan.plans[rank];
    const LayerRange& layers = plan.layers[rank];
    const double busy = busy_seconds(plan, rank);
    text += text_line("  rank %zu: layers %lld to %lld%s, %sweights %s, KV cache %s, busy %.0f %%",
                      rank, static_cast<long long>(layers.first),
                      static_cast<long long>(layers.end() - 1), rank == 0 ? " and the head" : "",
                      sharing > 1 ? "of its first rank: " : "", tiers_text(one.weights).c_str(),
                      tiers_text(one.kv).c_str(), 100 * busy / found.seconds());
  }
  text +=
      text_line("  rows travel for %s at %.3g GB/s, %.1f %% of the time of one that waits for them",
                format_seconds(found.network_seconds).c_str(), report.flags.cluster_network,
                100 * network_share(found));
  text += "machines     tokens/s   times one\n";
  for (const StagesReport::Row& row : report.rows) {
    if (row.tokens_per_second == 0) {
      text += text_line("%8lld  no plan fits", static_cast<long long>(row.machines));
      continue;
    }
    const double one = report.rows[0].tokens_per_second;
    text += text_line("%8lld %12s %11s", static_cast<long long>(row.machines),
                      format_rate(row.tokens_per_second).c_str(),
                      one > 0 ? format_rate(row.tokens_per_second / one).c_str() : "");
  }
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  return text + "to carry it out:\n" +
         text_line(
             "  mpirun -np %zu --host %s --bind-to none spillway batch %s --stages %zu%s "
             "--block %lld --prefill-tokens %lld ...",
             ranks, hosts_text(ranks).c_str(), report.model.c_str(), ranks,
             ranks_flag(report.engine).c_str(), number(plan.plans[0].block_sequences()),
             number(plan.plans[0].prefill_tokens()));
}

std::string stages_json(const StagesReport& report) {
  const StagedPlan& plan = report.plan;
  const StagePrediction& found = plan.prediction;
  ordered_json ranks = ordered_json::array();
  for (size_t rank = 0; rank < plan.plans.size(); ++rank) {
    ranks.push_back({{"rank", rank},
                     {"first_layer", plan.layers[rank].first},
                     {"layers", plan.layers[rank].count},
                     {"busy_seconds", busy_seconds(plan, rank)},
                     {"plan", plan_json(plan.plans[rank])}});
  }
  ordered_json machines = ordered_json::array();
  for (const StagesReport::Row& row : report.rows) {
    machines.push_back({{"machines", row.machines}, {"tokens_per_second", row.tokens_per_second}});
  }
  const ordered_json object = {
      {"model", report.model},
      {"formats", report.formats},
      {"stages", plan.plans.size()},
      {"ranks_of_each", plan.plans[0].shape.ranks},
      {"block", plan.plans[0].block_sequences()},
      {"prefill_tokens", plan.plans[0].prefill_tokens()},
      {"predicted",
       {{"prefill_seconds", found.prefill_seconds},
        {"decode_seconds", found.decode_seconds},
        {"total_seconds", found.seconds()},
        {"tokens_per_second", found.tokens_per_second()},
        {"generated_tokens", found.generated},
        {"network_seconds", found.network_seconds},
        {"network_bytes_per_second", report.flags.cluster_network * kNetworkUnit}}},
      {"ranks", std::move(ranks)},
      {"machines", std::move(machines)}};
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace spillway
