// What flags and a command's wishes make of a plan. Whether plans fit and are carried out:
// plan_search_test.cc and tests/endtoend/placement_test.cc.
#include "scheduler/planning/make_plan.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/device.h"
#include "scheduler/drafter.h"
#include "scheduler/planning/plan_json.h"

namespace spillway::make_plan_test {
namespace {

// opt-125m on a CPU with 2 GiB and a large disk.
struct Question {
  Question() {
    flags.device = "cpu";
    flags.dummy_weights = true;
    flags.threads = 1;
    machine.device = traits_of(*open_cpu_device(1).value());
    machine.host_budget = {uint64_t{2} << 30, true};
    machine.disk_free_bytes = uint64_t{100} << 30;
    model = open_model_to_plan("opt-125m", flags, machine.device, {}).value();
  }
  Result<Plan> make() const { return make_plan(model, machine, flags, wishes); }

  EngineFlags flags;
  PlanMachine machine;
  PlanWishes wishes;
  ModelToPlan model;
};

TEST_CASE("the block is the flag's, else the command's, else the default") {
  Question question;
  const int64_t other = question.make().value().block_sequences();
  CHECK(other > 7);
  question.wishes.block_sequences = 7;
  CHECK(question.make().value().block_sequences() == 7);
  question.flags.block = 5;
  CHECK(question.make().value().block_sequences() == 5);
}

TEST_CASE("a plan for q4 names all formats, since results depend on them, and its flag says q4") {
  Question question;
  question.flags.format = Format::kQ4;
  question.model =
      open_model_to_plan("opt-125m", question.flags, question.machine.device, {}).value();
  const Plan plan = question.make().value();
  CHECK(plan.formats_text() == "q4 and q8");
  CHECK(plan.formats_text() == question.model.table->formats_text());
  CHECK(plan_json(plan)["format"] == "q4");
  CHECK(plan.mixed_bytes[static_cast<size_t>(WeightRole::kHead)] > 0);
}

TEST_CASE("a sweep's prompt tokens are the flag's, else the command's, else the default") {
  Question question;
  question.flags.threads = 64;  // So that scratch is beyond what any process has
  const Plan usual = question.make().value();
  CHECK(usual.prefill_tokens() == SchedulerOptions().prefill_tokens_max);
  question.wishes.prefill_tokens_max = 700;
  CHECK(question.make().value().prefill_tokens() == 700);
  question.flags.prefill_tokens = 30;
  const Plan plan = question.make().value();
  CHECK(plan.prefill_tokens() == 30);
  CHECK(plan.asked.prefill_tokens == 30);
  // A short chunk attends to as many keys as a long one: its scratch is no smaller.
  CHECK(plan.process_bytes == usual.process_bytes);
}

TEST_CASE("with a target of prompt tokens the ring holds a layer of the block's cache") {
  Question question;
  question.wishes.prompt_tokens = 1000;
  question.wishes.new_tokens = 500;
  question.flags.block = 128;
  question.flags.kv = TierPercent{0, 0, 100};
  const auto ring = [&] { return question.make().value().placement.host_rings.kv; };
  constexpr uint64_t kUsual = uint64_t{256} << 20;
  CHECK(ring() == kUsual);
  question.flags.prefill_target = 300;
  CHECK(question.make().value().prefill_target() == 300);
  // 128 layers of 94 KV blocks, keys and values in bf16: 564 MiB, and an eighth more; but not more
  // than an eighth of the budget.
  CHECK(ring() == kUsual);
  question.machine.host_budget.bytes = uint64_t{8} << 30;
  CHECK(ring() > uint64_t{564} << 20);
  CHECK(ring() < uint64_t{640} << 20);
}

TEST_CASE("KV cache and activations on disk are within --disk-memory, or refused") {
  Question question;
  question.flags.activations = TierPercent{0, 0, 100};
  const Plan plan = question.make().value();
  CHECK(plan.kv.disk == 0);
  CHECK(plan.activations.disk > 0);
  question.flags.disk_memory_bytes = plan.activations.disk;
  CHECK(question.make().ok());
  question.flags.disk_memory_bytes = plan.activations.disk - 1;
  const Status refused = question.make().status();
  CHECK(refused.code() == Code::kInfeasible);
  CHECK(std::string(refused.message()).find("--disk-memory") != std::string::npos);
  CHECK(std::string(refused.message()).find("less of --activations") != std::string::npos);
}

TEST_CASE("drafts are those of the flags, in sweeps of few rows, of more where weights stream") {
  Question question;
  Plan plan = question.make().value();
  CHECK(plan.scheduling.draft_tokens == 0);
  CHECK(plan.engine.draft_rows_max == 0);
  question.flags.draft = "ngram";
  plan = question.make().value();
  CHECK(plan.scheduling.draft_tokens == 4);
  CHECK(plan.engine.draft_rows_max == kDraftRows);
  question.flags.draft_tokens = 12;  // A sweep of one sequence has them all.
  plan = question.make().value();
  CHECK(plan.scheduling.draft_tokens == 12);
  CHECK(plan.engine.draft_rows_max == 13);
  question.flags.weights = TierPercent{50, 0, 50};
  CHECK(question.make().value().engine.draft_rows_max == kDraftRowsStreaming);
}

TEST_CASE("every setting of the components is the plan's") {
  Question question;
  question.flags.block = 33;
  question.flags.micro_batch = 11;
  question.flags.kv_format = Format::kBF16;
  question.flags.kv_rule = "h2o";
  question.wishes.prefill_tokens_max = 77;
  const Plan plan = question.make().value();
  CHECK(plan.scheduling.block_sequences_max == 33);
  CHECK(plan.engine.micro_batch_sequences == 11);
  CHECK(plan.engine.kv_format == Format::kBF16);
  CHECK(plan.scheduling.kv_rule.kind == KvRuleKind::kH2o);
  CHECK(plan.scheduling.prefill_tokens_max == 77);
  CHECK(plan.engine.sweep_tokens_max == sweep_tokens_max(plan.shape, plan.scheduling));
  CHECK(plan.engine.kv_bytes == plan.placement.kv.device);
}

}  // namespace
}  // namespace spillway::make_plan_test
