// Ranks that share every layer of a model give the tokens of one that has it whole, whatever is
// placed where. (On GPUs: gpu_ranks_test.cc.)
#include <catch2/catch.hpp>
#include <string>

#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/golden.h"
#include "tests/support/staged_runtime.h"
#include "tests/support/tier_setups.h"

namespace spillway::ranks_test {
namespace {

using test::Answers;
using test::TierSetup;

struct Model {
  const char* variant;
  Format format;
  Format kv_format;
  int64_t ranks_max;  // That its KV heads can be divided among
};

EngineFlags cpu_flags(const Model& model, const TierSetup& setup) {
  return test::tier_flags("cpu", model.format, model.kv_format, setup);
}

Answers run(const std::string& checkpoint, const EngineFlags& flags,
            std::vector<Request>* requests) {
  const auto runtime = test::open_runtime(checkpoint, flags);
  if (requests->empty()) *requests = test::tier_requests(runtime->shape(), 20261128);
  return test::run_together(*runtime, *requests);
}

// On a CPU. Of panels of 16 outputs the tiny models' ranks have halves and quarters, so that their
// weights are packed anew.
void check_on_cpu(const Model& model) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(model.variant).checkpoints.front();
  std::vector<Request> requests;
  const Answers expected = run(checkpoint, cpu_flags(model, {}), &requests);
  const TierSetup setups[] = {
      {.name = "in memory"},
      {.name = "in memory, prompts in chunks", .micro_batch = 3, .prefill_tokens = 12},
      {.name = "weights on disk", .weights = {0, 0, 100}},
      {.name = "KV on disk", .kv = {0, 0, 100}, .micro_batch = 2},
      {.name = "mixed",
       .weights = {40, 0, 60},
       .kv = {50, 0, 50},
       .activations = {30, 0, 70},
       .micro_batch = 2},
  };
  for (int64_t ranks = 2; ranks <= model.ranks_max; ranks *= 2) {
    for (const TierSetup& setup : setups) {
      INFO(model.variant << ", weights " << format_name(model.format) << ", KV "
                         << format_name(model.kv_format) << ", " << ranks << " ranks, "
                         << setup.name);
      EngineFlags flags = cpu_flags(model, setup);
      flags.ranks = ranks;
      flags.threads = ranks;
      CHECK(test::difference(requests, expected, run(checkpoint, flags, &requests), 0) == "");
    }
  }
}

TEST_CASE("ranks give the tokens of one, float32", "[slow]") {
  check_on_cpu({"post_ln_projected", Format::kF32, Format::kF32, 4});
  check_on_cpu({"llama_biases_linear", Format::kF32, Format::kF32, 4});
}

TEST_CASE("ranks give the tokens of one, narrow formats", "[slow]") {
  check_on_cpu({"pre_ln_relu", Format::kBF16, Format::kF16, 2});
  check_on_cpu({"llama_biases_linear", Format::kBF16, Format::kBF16, 4});
  check_on_cpu({"gpt_neox", Format::kF16, Format::kQ8, 2});
}

TEST_CASE("ranks give the tokens of one, quantised weights", "[slow]") {
  check_on_cpu({"post_ln_projected", Format::kQ4, Format::kQ4, 4});
  check_on_cpu({"qwen3", Format::kQ8, Format::kQ8, 2});
  check_on_cpu({"granite", Format::kQ8_1, Format::kF16, 2});
}

TEST_CASE("ranks give the tokens of one, sliding windows", "[slow]") {
  check_on_cpu({"qwen2_window", Format::kF32, Format::kF32, 2});
  check_on_cpu({"smollm3_window", Format::kBF16, Format::kF32, 2});
}

// Stages, each of which is ranks that share its layers.
void check_stages(const Model& model) {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(model.variant).checkpoints.front();
  std::vector<Request> requests;
  const Answers expected = run(checkpoint, cpu_flags(model, {}), &requests);
  for (const TierSetup& setup :
       {TierSetup{.name = "in memory, prompts in chunks", .micro_batch = 3, .prefill_tokens = 12},
        TierSetup{.name = "mixed",
        .weights = {40, 0, 60},
        .kv = {50, 0, 50},
        .activations = {30, 0, 70},
        .micro_batch = 2}}) {
    INFO(model.variant << ", weights " << format_name(model.format) << ", KV "
                       << format_name(model.kv_format) << ", " << setup.name);
    EngineFlags flags = cpu_flags(model, setup);
    flags.stages = 2;
    flags.ranks = flags.threads = model.ranks_max;
    test::StagedRuntime stages(checkpoint, flags);
    const Answers found = test::run_together(stages.runtime(), requests);
    CHECK(test::difference(requests, expected, found, 0) == "");
    CHECK(stages.end().ok());
  }
}

TEST_CASE("stages of ranks give the tokens of one", "[slow]") {
  check_stages({"post_ln_projected", Format::kF32, Format::kF32, 4});
  check_stages({"qwen3", Format::kQ8, Format::kQ8, 2});
  check_stages({"qwen2_window", Format::kBF16, Format::kF16, 2});
}

// Whole panels, which are moved as they lie, and the checkpoint's own rows.
TEST_CASE("ranks give the tokens of one, of the demo model and of a checkpoint as it lies",
          "[slow]") {
  const test::TemporaryCache cache;
  std::vector<Request> requests;
  EngineFlags flags = test::tier_flags("cpu", Format::kF16, Format::kF16, {});
  const std::string demo = test::source_directory() + "/configs/demo";
  const Answers expected = run(demo, flags, &requests);
  flags.threads = 4;
  for (const char* from : {"packed", "checkpoint"}) {
    for (const TierPercent& weights : {TierPercent{100, 0, 0}, TierPercent{40, 0, 60}}) {
      for (const int64_t ranks : {2, 4}) {
        INFO(from << ", " << weights[2] << " % on disk, " << ranks << " ranks");
        flags.ranks = ranks;
        flags.weights_from = from;
        flags.weights = weights;
        CHECK(test::difference(requests, expected, run(demo, flags, &requests), 0) == "");
      }
    }
  }
}

}  // namespace
}  // namespace spillway::ranks_test
