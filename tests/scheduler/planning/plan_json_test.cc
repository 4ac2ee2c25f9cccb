// The written form of a plan: all that a run must be told to carry it out, and nothing else.
#include "scheduler/planning/plan_json.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "server/cli/flags/engine_settings.h"
#include "server/cli/flags/plan_file.h"

namespace spillway::plan_json_test {
namespace {

using nlohmann::json;

Plan sample_plan() {
  Plan plan;
  plan.model_name = "opt-1.3b";
  plan.format = Format::kQ4;
  plan.engine.kv_format = Format::kBF16;
  plan.percent = {{20, 0, 80}, {60, 0, 40}, {100, 0, 0}};
  plan.scheduling.block_sequences_max = 96;
  return plan;
}

// The engine flags after the plan was read from its text.
EngineFlags read(const Plan& plan) {
  EngineFlags flags;
  Settings settings;
  add_engine_flags(settings, &flags);
  const Status status = apply_plan_text(plan_json(plan).dump(), "plan.json", settings);
  INFO(status.message());
  REQUIRE(status.ok());
  REQUIRE(validate(flags).ok());
  return flags;
}

TEST_CASE("a plan's JSON names what a run takes, by the names of its flags") {
  CHECK(plan_json(sample_plan()) == json{{"version", 1},
                                         {"model", "opt-1.3b"},
                                         {"device", "cpu"},
                                         {"weights", {20, 0, 80}},
                                         {"kv", {60, 0, 40}},
                                         {"activations", {100, 0, 0}},
                                         {"block", 96},
                                         {"format", "q4"},
                                         {"kv_format", "bf16"},
                                         {"quantized_compute", "float"},
                                         {"kv_rule", "full"}});
  CHECK(plan_flags_text(sample_plan()) ==
        "--block 96 --activations 100,0,0 --format q4 --kv 60,0,40 --kv-format bf16 "
        "--quantized-compute float --weights 20,0,80");
}

TEST_CASE("a plan for weights in several formats leaves these to the checkpoint") {
  Plan plan = sample_plan();
  plan.format = Format::kQ4_1;
  plan.mixed_formats = "q4_1 and q8_1";
  plan.in_named_format = false;
  CHECK(plan_json(plan)["format"].is_null());
  CHECK(plan_flags_text(plan) ==
        "--block 96 --activations 100,0,0 --kv 60,0,40 --kv-format bf16 --quantized-compute float "
        "--weights 20,0,80");
  CHECK_FALSE(read(plan).format);
}

TEST_CASE("every member that a plan can have is read by --plan") {
  Plan plan = sample_plan();
  plan.discrete = true;
  plan.engine.host_attention = true;
  plan.engine.micro_batch_sequences = 48;
  plan.engine.overlap = false;
  plan.scheduling.prefill_target = 99;
  plan.asked = {uint64_t{8} << 30, uint64_t{16} << 30, 12345, 777};
  plan.scheduling.kv_rule =
      apply({KvRuleKind::kH2o, KvAmount{0, 0.25}, KvAmount{32, 0}, {}, {}}, {});
  EngineFlags flags = read(plan);
  CHECK(flags.device == "cuda");
  CHECK(flags.attention == "host");
  CHECK(flags.micro_batch == 48);
  CHECK(flags.prefill_tokens == 777);
  CHECK(flags.prefill_target == 99);
  CHECK(flags.no_overlap);
  CHECK(flags.device_memory_bytes == uint64_t{8} << 30);
  CHECK(flags.host_memory_bytes == uint64_t{16} << 30);
  CHECK(flags.disk_memory_bytes == 12345);
  CHECK(*flags.weights == TierPercent{20, 0, 80});
  CHECK(*flags.kv == TierPercent{60, 0, 40});
  CHECK(*flags.activations == TierPercent{100, 0, 0});
  CHECK(flags.block == 96);
  CHECK(flags.format == Format::kQ4);
  CHECK(flags.kv_format == Format::kBF16);
  CHECK(kv_rule_of(flags) == plan.kv_rule());

  plan = sample_plan();
  plan.in_int8 = true;
  plan.scheduling.kv_rule = apply({KvRuleKind::kWindow, {}, KvAmount{0, 0.5}, 4, {}}, {});
  flags = read(plan);
  CHECK(flags.device == "cpu");
  CHECK(flags.quantized_compute == "int8");
  CHECK_FALSE(flags.no_overlap);
  CHECK_FALSE(flags.host_memory_bytes);
  CHECK(kv_rule_of(flags) == plan.kv_rule());

  // A window's plain number of first positions has the name that it always had.
  CHECK(plan_json(plan)["kv_sink"] == 4);
  CHECK_FALSE(plan_json(plan).contains("kv_keep"));
  for (const KvRuleKind kind :
       {KvRuleKind::kH2o, KvRuleKind::kWindow, KvRuleKind::kRandom, KvRuleKind::kSnap}) {
    for (const KvKeep& keep : {KvKeep(7), KvKeep({0, 0.125}), KvKeep::whole_prompt()}) {
      plan.scheduling.kv_rule = apply({kind, {}, {}, keep, {}}, {});
      if (kind == KvRuleKind::kSnap) plan.scheduling.kv_rule.snap = KvSnap::kMax;
      INFO(to_string(plan.kv_rule()));
      CHECK(kv_rule_of(read(plan)) == plan.kv_rule());
    }
  }
}

}  // namespace
}  // namespace spillway::plan_json_test
