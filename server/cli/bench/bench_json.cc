#include <algorithm>
#include <nlohmann/json.hpp>

#include "scheduler/planning/plan_json.h"
#include "server/cli/bench/bench_check.h"
#include "server/cli/bench/bench_report.h"

namespace spillway {

namespace {

using nlohmann::json;

json bound_object(const Bound& bound) {
  const auto busy = [&](Resource resource) { return bound.busy[index(resource)]; };
  return {{"resource", std::string(resource_name(bound.resource))},
          {"seconds", bound.seconds},
          {"seconds_any_schedule", bound.seconds_any_schedule},
          {"compute_seconds", busy(Resource::kCompute)},
          {"memory_seconds", busy(Resource::kMemory)},
          {"disk_read_seconds", busy(Resource::kDiskRead)},
          {"disk_write_seconds", busy(Resource::kDiskWrite)},
          {"host_to_device_seconds", busy(Resource::kHostToDevice)},
          {"device_to_host_seconds", busy(Resource::kDeviceToHost)}};
}

json tier_object(const TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}, {"disk", bytes.disk}};
}

json time_object(const TimeByCause& time) {
  return {{"sweeps", time.sweeps},
          {"seconds", time.seconds},
          {"compute_seconds", time.compute_seconds},
          {"weights_wait_seconds", time.weights_wait_seconds},
          {"kv_wait_seconds", time.kv_wait_seconds},
          {"activations_wait_seconds", time.activations_wait_seconds},
          {"staging_wait_seconds", time.staging_wait_seconds},
          {"disk_bytes_read", time.disk_read_bytes},
          {"disk_bytes_written", time.disk_write_bytes},
          {"host_to_device_bytes", time.to_device_bytes},
          {"device_to_host_bytes", time.to_host_bytes}};
}

// Null: the run has no steady part.
json steady_object(const BenchResult& result) {
  const std::vector<LoggedSweep> sweeps = steady_sweeps(result.sweeps);
  if (sweeps.empty()) return nullptr;
  const TimeByCause time = time_by_cause(sweeps);
  const Bound& bound = result.steady.hardware;
  const int64_t generated = generated_tokens(sweeps);
  return {{"time", time_object(time)},
          {"generated_tokens", generated},
          {"tokens_per_second", ratio(static_cast<double>(generated), time.seconds)},
          {"bound", bound_object(bound)},
          {"efficiency", efficiency(bound, time.seconds)},
          {"efficiency_any_schedule", ratio(bound.seconds_any_schedule, time.seconds)}};
}

json cut_object(const BenchResult::Cut& cut) {
  return {{"decode_steps", cut.decode_steps},
          {"decode_seconds", cut.decode_seconds},
          {"total_seconds", cut.total_seconds},
          {"generated_tokens", cut.generated}};
}

json peak_object(const Peak& peak) {
  return {{"operations_per_second", peak.operations_per_second}, {"by", peak.instruction}};
}

// Null: the device is not a CPU.
json peaks_object(const BenchResult& result, const Peaks& peaks) {
  if (result.plan.discrete) return nullptr;
  return {{"f32", peak_object(peaks.f32)},
          {"bf16", peak_object(peaks.bf16)},
          {"int8", peak_object(peaks.int8)}};
}

// The ceilings that change most on a shared machine, as measured at one time.
json at_one_time(const MeasuredCeilings& found) {
  return {{"compute_operations_per_second", found.products.operations_per_second},
          {"memory_bytes_per_second", found.rates.memory},
          {"disk_read_bytes_per_second", found.rates.disk_read},
          {"disk_write_bytes_per_second", found.rates.disk_write}};
}

// Null: memory was not measured during the run.
json during_run(const std::vector<double>& memory) {
  if (memory.empty()) return nullptr;
  const auto [low, high] = std::minmax_element(memory.begin(), memory.end());
  return {{"memory_samples", memory.size()},
          {"memory_bytes_per_second_low", *low},
          {"memory_bytes_per_second_high", *high}};
}

json hardware_object(const BenchResult& result) {
  const MeasuredCeilings& found = result.ceilings;
  const Ceilings& rates = found.rates;
  json matrix = json::array();
  for (size_t i = 0; i < found.matrix.size(); ++i) {
    const MatrixRate& rate = rates.matrix[i];
    matrix.push_back(
        {{"rows", rate.rows},
         {"outputs", rate.outputs},
         {"inputs", rate.inputs},
         {"own_flops_per_second", found.matrix[i].ours},
         {"own_of_peak", ratio(found.matrix[i].ours, found.products.operations_per_second)}});
    if (result.plan.discrete) {
      matrix.back()["library_flops_per_second"] = found.matrix[i].library;
    }
  }
  return {
      {"device", result.device},
      {"peaks", peaks_object(result, found.peaks)},
      {"products_peak", peak_object(found.products)},
      {"prompt_attention_peak", peak_object(found.attention)},
      {"memory_bytes_per_second", rates.memory},
      {"disk_read_bytes_per_second", rates.disk_read},
      {"disk_write_bytes_per_second", rates.disk_write},
      {"host_to_device_bytes_per_second", rates.to_device},
      {"device_to_host_bytes_per_second", rates.to_host},
      {"both_directions_bytes_per_second", found.copies.both},
      {"disk_read_of_own_file", found.of_own_file},
      {"attention_flops_per_second", rates.prompt_attention},
      {"attention_of_peak", ratio(rates.prompt_attention, found.attention.operations_per_second)},
      {"decode_attention_bytes_per_second", rates.cache},
      {"decode_attention_of_memory", ratio(rates.cache, rates.memory)},
      {"before", at_one_time(result.before)},
      {"after", at_one_time(result.after)},
      {"during", during_run(result.during.memory)},
      {"matrix", matrix}};
}

json checks_object(const BenchResult& result) {
  json checks = json::array();
  for (const Gate& gate : gates_of(result)) {
    checks.push_back({{"name", gate.name},
                      {"value", gate.value},
                      {"at_least", gate.least},
                      {"passed", gate.passed()}});
  }
  return checks;
}

}  // namespace

std::string bench_json(const BenchResult& result) {
  const BenchFlags& flags = result.flags;
  const Plan& plan = result.plan;
  const TimeByCause all = time_by_cause(result.sweeps);
  const TimeByCause prefill = time_by_cause(prefill_sweeps(result.sweeps));
  const TimeByCause decode = time_by_cause(decode_sweeps(result.sweeps));
  const auto prompt_tokens = static_cast<double>(flags.sequences * flags.prompt_tokens);
  const auto generated = static_cast<double>(result.generated);
  const double seconds = result.measured_seconds();
  const double decoded = generated - static_cast<double>(flags.sequences);
  const json object = {
      {"model", result.model},
      {"ranks", result.plan.shape.ranks},
      {"plan", plan_json(plan)},
      {"micro_batch_tokens", plan.micro_batch_tokens()},
      {"host_memory_bytes", plan.budget_bytes},
      {"device_memory_bytes", plan.device_budget_bytes},
      {"prompt_tokens", flags.prompt_tokens},
      {"new_tokens", flags.new_tokens},
      {"sequences", flags.sequences},
      {"load_seconds", plan.load_seconds},
      {"prefill_seconds", result.prefill_seconds},
      {"decode_seconds", result.decode_seconds},
      {"total_seconds", result.total_seconds},
      {"prefill_tokens_per_second", ratio(prompt_tokens, result.prefill_seconds)},
      {"decode_tokens_per_second", ratio(decoded, result.decode_seconds)},
      {"tokens_per_second", ratio(generated, result.total_seconds)},
      {"peak_device_bytes", result.peak_device_bytes},
      {"other_device_bytes", result.other_device_bytes},
      {"peak_host_bytes", result.peak_host_bytes},
      {"disk_bytes_read", all.disk_read_bytes},
      {"disk_bytes_written", all.disk_write_bytes},
      {"bytes_by_tier",
       {{"weights", tier_object(plan.weights)},
        {"kv", tier_object(plan.kv)},
        {"activations", tier_object(plan.activations)}}},
      {"time_by_cause",
       {{"prefill", time_object(prefill)},
        {"decode", time_object(decode)},
        {"outside_sweeps_seconds", std::max(0.0, result.measured_seconds() - all.seconds)}}},
      {"bound", bound_object(result.total.hardware)},
      {"bound_of_kernels", bound_object(result.total.kernels)},
      {"efficiency", efficiency(result.total.hardware, seconds)},
      {"efficiency_any_schedule", ratio(result.total.hardware.seconds_any_schedule, seconds)},
      {"efficiency_of_kernels", efficiency(result.total.kernels, seconds)},
      {"prefill_bound", bound_object(result.prefill.hardware)},
      {"prefill_efficiency", efficiency(result.prefill.hardware, prefill.seconds)},
      {"prefill_efficiency_of_kernels", efficiency(result.prefill.kernels, prefill.seconds)},
      {"decode_bound", bound_object(result.decode.hardware)},
      {"decode_efficiency", efficiency(result.decode.hardware, decode.seconds)},
      {"decode_efficiency_of_kernels", efficiency(result.decode.kernels, decode.seconds)},
      {"beaten_bounds", beaten_bounds(result)},
      {"checks", checks_object(result)},
      {"requests", flags.requests},
      {"prefill_target", plan.prefill_target()},
      {"prefill_target_at_end", result.prefill_target_at_end},
      {"steady", steady_object(result)},
      {"predicted_tokens_per_second", result.predicted ? json(*result.predicted) : json()},
      {"projected", result.cut.has_value()},
      {"measured", result.cut ? cut_object(*result.cut) : json()},
      {"hardware", hardware_object(result)}};
  return object.dump(2);
}

}  // namespace spillway
