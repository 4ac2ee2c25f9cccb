// Tokens do not depend on where weights, KV cache and activations live, nor on whether their
// transfers overlap the work: every placement gives the tokens of the run in
// memory, with distinct ragged prompts, arrivals in mid-run, and every format of weights and cache.
// On a GPU, where there is one, narrow formats are compared to within rounding (answers.h).
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>

#include "offload/model_file/model_file.h"
#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tiny_shape.h"

namespace spillway::endtoend_placement_test {
namespace {

using test::Answers;

struct Setup {
  const char* name = "";
  TierPercent weights = {100, 0, 0}, kv = {100, 0, 0}, activations = {100, 0, 0};
  bool overlap = true;
  std::optional<int64_t> block = {}, micro_batch = {};
};

// Every tier alone, mixtures, and each with and without overlap and with small micro-batches.
std::vector<Setup> setups() {
  const Setup places[] = {
      {.name = "weights on disk", .weights = {0, 0, 100}},
      {.name = "KV on disk", .kv = {0, 0, 100}},
      {.name = "activations on disk", .activations = {0, 0, 100}},
      {.name = "all on disk",
       .weights = {0, 0, 100},
       .kv = {0, 0, 100},
       .activations = {0, 0, 100}},
      {.name = "mixed", .weights = {20, 30, 50}, .kv = {30, 30, 40}, .activations = {10, 40, 50}},
      {.name = "a little on disk", .weights = {90, 0, 10}, .kv = {0, 90, 10}},
  };
  std::vector<Setup> all;
  for (Setup setup : places) {
    all.push_back(setup);
    setup.overlap = false;
    all.push_back(setup);
    setup.overlap = true;
    setup.block = 9;
    setup.micro_batch = 2;
    all.push_back(setup);
  }
  return all;
}

std::unique_ptr<Runtime> open(const std::string& checkpoint, Format format, Format kv_format,
                              const Setup& setup, const std::string& quantized_compute = "auto",
                              bool on_cpu = false) {
  EngineFlags flags;
  flags.quantized_compute = quantized_compute;
  if (on_cpu) flags.device = "cpu";
  flags.format = format;
  flags.kv_format = kv_format;
  flags.weights = setup.weights;
  flags.kv = setup.kv;
  flags.activations = setup.activations;
  flags.no_overlap = !setup.overlap;
  flags.block = setup.block.value_or(24);
  flags.micro_batch = setup.micro_batch;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(checkpoint, flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

// Three of eight requests keep less than the full cache.
KvRuleChoice rule_of(size_t i) {
  KvRuleChoice choice;
  if (i % 4 == 1) {
    choice.kind = KvRuleKind::kH2o;
    if (i % 8 == 1) choice.heavy = choice.recent = KvAmount{7, 0};
  }
  if (i % 8 == 3) {
    choice.kind = KvRuleKind::kWindow;
    choice.recent = KvAmount{9, 0};
    choice.keep = 3;
  }
  return choice;
}

std::vector<Request> make_requests(const ModelShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests(30);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = test::random_prompt(random, 60, shape.vocabulary);
    requests[i].max_tokens = static_cast<int32_t>(1 + random() % 25);
    requests[i].ignore_eos = true;
    requests[i].sampling.temperature = i % 3 == 0 ? 0.8f : 0.0f;
    requests[i].sampling.seed = i;
    requests[i].kv = rule_of(i);
  }
  return requests;
}

constexpr uint64_t kSeed = 20261122;

void check_shares(const TierBytes& bytes, const TierPercent& wanted, double slack) {
  const auto all = static_cast<double>(bytes.device + bytes.host + bytes.disk);
  CHECK(std::abs(static_cast<double>(bytes.disk) - all * wanted[2] / 100) <= slack);
}

Answers check_placements(const std::string& variant, Format format, Format kv_format,
                         const std::string& quantized_compute = "auto") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden(variant).checkpoints.front();
  INFO(variant << ", weights " << format_name(format) << ", KV " << format_name(kv_format));
  std::vector<Request> requests;
  Answers expected;
  double tolerance = 0;
  {
    const auto runtime =
        open(checkpoint, format, kv_format, {}, quantized_compute, quantized_compute == "int8");
    requests = make_requests(runtime->shape(), kSeed);
    tolerance = test::placement_tolerance(*runtime, format, kv_format);
    if (tolerance > 0) test::ask_logprobs(&requests);
    expected = test::run_arriving(*runtime, requests);
  }
  for (const Setup& setup : setups()) {
    INFO(setup.name << (setup.overlap ? "" : ", no overlap") << ", micro-batch "
                    << setup.micro_batch.value_or(0));
    const auto runtime =
        open(checkpoint, format, kv_format, setup, quantized_compute, quantized_compute == "int8");
    // To within one slab of the largest weight.
    check_shares(runtime->plan().weights, setup.weights,
                 static_cast<double>(runtime->shape().vocabulary * runtime->shape().hidden * 4 +
                                     int64_t{4} * 4096));
    CHECK(test::difference(requests, expected, test::run_arriving(*runtime, requests), tolerance) ==
          "");
    CHECK(runtime->scheduler().stats().kv_bytes_used == 0);
  }
  return expected;
}

TEST_CASE("every placement gives the tokens of the run in memory, float32") {
  check_placements("pre_ln_relu", Format::kF32, Format::kF32);
}

TEST_CASE("every placement gives the tokens of the run in memory, narrow formats", "[slow]") {
  check_placements("pre_ln_relu", Format::kBF16, Format::kBF16);
  check_placements("pre_ln_relu", Format::kF16, Format::kF32);
}

TEST_CASE("every placement gives the tokens of the run in memory, 4 bits", "[slow]") {
  check_placements("pre_ln_relu", Format::kQ4, Format::kQ4);
  check_placements("post_ln_projected", Format::kQ4, Format::kBF16);
}

TEST_CASE("every placement gives the tokens of the run in memory, 8 bits", "[slow]") {
  check_placements("pre_ln_relu", Format::kQ8, Format::kF16);
  check_placements("llama3", Format::kQ8, Format::kQ4);
}

TEST_CASE("every placement gives the tokens of the run in memory, 8-bit products", "[slow]") {
  if (!open_cpu_device(1, CpuMatmul::kInt8).ok()) return;
  const char* variant = "post_ln_projected";
  const Answers answers = check_placements(variant, Format::kQ4, Format::kBF16, "int8");
  // They are others than those without.
  const test::TemporaryCache cache;
  const auto runtime = open(test::read_golden(variant).checkpoints.front(), Format::kQ4,
                            Format::kBF16, {}, "float", true);
  const std::vector<Request> requests = make_requests(runtime->shape(), kSeed);
  CHECK(test::difference(requests, test::run_arriving(*runtime, requests), answers, 0) != "");
}

TEST_CASE("every placement gives the tokens of the run in memory, post-norm with projections",
          "[slow]") {
  check_placements("post_ln_projected", Format::kF32, Format::kF16);
}

TEST_CASE("a packed file in memory needs no home directory, and scratch files say so") {
  const test::TemporaryCache cache;
  const std::string checkpoint = test::read_golden("pre_ln_relu").checkpoints.front();
  (void)open(checkpoint, Format::kF32, Format::kF32, {}, "auto", true);  // Packs it into the cache.
  std::string packed;
  for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
    if (entry.path().extension() == ".spill") packed = entry.path().string();
  }
  REQUIRE_FALSE(packed.empty());
  // The variables that name a place for caches; the last two come back at the end.
  unsetenv("SPILLWAY_CACHE");
  std::map<const char*, std::string> kept;
  for (const char* name : {"XDG_CACHE_HOME", "HOME"}) {
    if (const char* value = getenv(name)) kept[name] = value;
    unsetenv(name);
  }
  EngineFlags flags;
  flags.device = "cpu";
  flags.host_memory_bytes = uint64_t{1} << 30;
  const Status in_memory = Runtime::open(packed, flags, {}).status();
  flags.activations = TierPercent{0, 0, 100};
  const Status spilled = Runtime::open(packed, flags, {}).status();
  for (const auto& [name, value] : kept) setenv(name, value.c_str(), 1);
  INFO(in_memory.message());
  CHECK(in_memory.ok());
  CHECK(spilled.message().find("--disk-dir") != std::string_view::npos);
}

TEST_CASE("too little memory for any placement says what is missing and what would fit") {
  const test::TemporaryCache cache;
  EngineFlags flags;
  flags.device = "cpu";  // A GPU's own memory would hold it all.
  flags.host_memory_bytes = uint64_t{100} << 20;
  flags.dummy_weights = true;
  flags.format = Format::kBF16;
  const Status status = Runtime::open("opt-125m", flags, {}).status();
  const std::string message(status.message());
  INFO(message);
  CHECK(status.code() == Code::kInfeasible);
  CHECK(message.find("short") != std::string::npos);
  const size_t at = message.find("--host-memory ", message.find("smallest"));
  REQUIRE(at != std::string::npos);
  // What the message names does fit, with weights on disk where the flags left them open.
  flags.host_memory_bytes = std::stoull(message.substr(at + 14)) << 20;
  const auto runtime = Runtime::open("opt-125m", flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  CHECK(runtime.value()->plan().weights.disk > 0);
}

TEST_CASE("max-model-len shortens sequences and buffers, not the weights") {
  const test::TemporaryCache cache;
  for (const char* variant : {"pre_ln_relu", "llama3"}) {
    INFO(variant);
    const test::Golden golden = test::read_golden(variant);
    EngineFlags flags;
    flags.device = "cpu";
    flags.format = Format::kF32;
    flags.host_memory_bytes = uint64_t{1} << 30;
    flags.max_model_len = 40;
    const auto runtime = Runtime::open(golden.checkpoints.front(), flags, {}).value();
    CHECK(runtime->shape().positions == 40);
    Request request;
    request.prompt = golden.prompts.front().prompt;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.max_tokens = 40;
    auto sink = std::make_shared<test::CollectingSink>();
    const Status refused = runtime->scheduler().submit(request, sink).status();
    CHECK_THAT(std::string(refused.message()), Catch::Contains("the model has 40 positions"));
    request.max_tokens = 30;
    REQUIRE(runtime->scheduler().submit(request, sink).ok());
    CHECK(sink->wait().reason == FinishReason::kLength);
    const auto& tokens = golden.prompts.front().tokens;
    CHECK(sink->tokens == std::vector<int32_t>(tokens.begin(), tokens.begin() + 30));
  }
}

TEST_CASE("a packed file of a model that no layer of ours computes is refused, not run") {
  const test::TemporaryCache cache;
  const TempDirectory temp;
  const auto refusal = [&](const ModelShape& shape) {
    auto writer =
        ModelFileWriter::create(temp / "m.spill",
                                plan_model_file(shape, Format::kF32, MatrixLayout::kPanels16))
            .value();
    const auto& slabs = writer->table().slabs;
    for (uint32_t i = 0; i < slabs.size(); ++i) {
      REQUIRE(writer->write_slab(i, std::vector<std::byte>(slabs[i].bytes)).ok());
    }
    REQUIRE(writer->finish().ok());
    EngineFlags flags;
    flags.device = "cpu";
    return std::string(Runtime::open(temp / "m.spill", flags, {}).status().message());
  };
  CHECK(refusal(test::tiny_shape()) == "");
  CHECK(refusal(test::rotary_shape()) == "");
  ModelShape parallel = test::tiny_shape();
  parallel.parallel = true;
  parallel.norm_place = NormPlace::kPost;
  CHECK_THAT(refusal(parallel), Catch::Contains("side by side with the norms behind them"));
  ModelShape scaled = test::tiny_shape();
  scaled.residual_scale = 0.5f;
  CHECK_THAT(refusal(scaled), Catch::Contains("has biases there"));
}

}  // namespace
}  // namespace spillway::endtoend_placement_test
