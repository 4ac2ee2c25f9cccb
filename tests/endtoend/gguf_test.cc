// GGUF files made of the golden checkpoints, against transformers: the same greedy tokens, logprobs
// within 1e-3.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <random>

#include "server/runtime.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/gguf_of_checkpoint.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace spillway::gguf_test {
namespace {

using test::CollectingSink;
using test::GoldenPrompt;

constexpr double kLogprobError = 1e-3;

EngineFlags in_float32() {
  EngineFlags flags;
  flags.format = Format::kF32;
  return flags;
}

std::unique_ptr<Runtime> open(const std::string& model, EngineFlags flags = in_float32()) {
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  RuntimeOptions options;
  options.start_scheduler = true;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(model, flags, options);
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return std::move(runtime).value();
}

void check_prompts(const std::vector<GoldenPrompt>& prompts, Runtime& runtime) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const GoldenPrompt& prompt : prompts) {
    Request request;
    request.prompt = prompt.prompt;
    request.max_tokens = static_cast<int32_t>(prompt.tokens.size());
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.logprobs = 1;
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto submitted = runtime.scheduler().submit(std::move(request), sinks.back());
    INFO(submitted.status().message());
    REQUIRE(submitted.ok());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    INFO("prompt " << i);
    CHECK(sinks[i]->wait().reason == FinishReason::kLength);
    REQUIRE(sinks[i]->tokens == prompts[i].tokens);
    double error = 0;
    for (size_t t = 0; t < prompts[i].tokens.size(); ++t) {
      error = std::max(
          error, std::abs(double{sinks[i]->logprobs[t].logprob} - double{prompts[i].logprobs[t]}));
    }
    CHECK(error < kLogprobError);
  }
}

// Blocks of 32 numbers up to about 0.1, in Q4_0 (18 bytes) or Q8_0 (34).
Bytes random_blocks(bool four_bits, int64_t rows, int64_t columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes data;
  for (int64_t block = 0; block < rows * columns / 32; ++block) {
    const float scale =
        (1 + static_cast<float>(random() % 1000) / 1000) * (four_bits ? 0.01f : 7e-4f);
    append_little(data, f32_to_f16(random() % 2 == 0 ? scale : -scale), 2);
    for (int i = 0; i < (four_bits ? 16 : 32); ++i) append_little(data, random() & 255, 1);
  }
  return data;
}

// A Llama of 40 tokens: Q4_0, but for the values and one layer's mlp_down, which are Q8_0.
Bytes quantized_llama() {
  GgufWriter writer = GgufWriter::model("llama");
  uint64_t seed = 0;
  writer.add_llama([&](const std::string& name, int64_t rows, int64_t columns) {
    const bool four_bits =
        name != "blk.0.ffn_down.weight" && name.find("attn_v") == std::string::npos;
    writer.add_tensor(name, four_bits ? 2 : 8, {rows, columns},
                      random_blocks(four_bits, rows, columns, ++seed));
  });
  return writer.file();
}

// The greedy tokens of one prompt and their log-probabilities.
std::shared_ptr<CollectingSink> answer(Runtime& runtime) {
  Request request;
  request.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  request.max_tokens = 24;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.logprobs = 1;
  auto sink = std::make_shared<CollectingSink>();
  REQUIRE(runtime.scheduler().submit(std::move(request), sink).ok());
  CHECK(sink->wait().reason == FinishReason::kLength);
  return sink;
}

TEST_CASE("weights in several formats of few bits compute with the numbers of the file") {
  const test::TemporaryCache cache;
  const TempDirectory temp;
  write_file(temp / "m.gguf", quantized_llama());
  const auto expected = answer(*open(temp / "m.gguf"));
  const auto kept = open(temp / "m.gguf", {});
  CHECK(kept->plan().format == Format::kQ4_1);
  CHECK(kept->plan().formats_text() == "q4_1 and q8_1");
  CHECK(kept->plan().quantization->error_max == 0);
  const auto found = answer(*kept);
  // Activations may be bf16: the numbers of the weights are the same, so only these round.
  double error = 0;
  for (size_t t = 0; t < 4; ++t) {
    if (found->tokens[t] != expected->tokens[t]) break;
    error = std::max(error, std::abs(double{found->logprobs[t].logprob} -
                                     double{expected->logprobs[t].logprob}));
  }
  CHECK(found->tokens[0] == expected->tokens[0]);
  CHECK(error < 0.03);
  EngineFlags from_disk;
  from_disk.weights = TierPercent{0, 0, 100};
  const auto streamed = answer(*open(temp / "m.gguf", from_disk));
  CHECK(streamed->tokens == found->tokens);
  for (size_t t = 0; t < 24; ++t) {
    CHECK(streamed->logprobs[t].logprob == found->logprobs[t].logprob);
  }
}

TEST_CASE("GGUF files of the golden checkpoints agree with transformers") {
  const test::TemporaryCache cache;
  const TempDirectory temp;
  // Of the others GGUF cannot say the activation or the kind of rotary scaling, or has no family.
  for (const char* variant : {"gpt_neox", "gpt_neox_serial", "granite", "llama3", "llama_yarn_bf16",
                              "mistral", "phi3_longrope", "qwen2", "qwen3", "smollm3"}) {
    INFO(variant);
    const test::Golden golden = test::read_golden(variant);
    REQUIRE_FALSE(golden.checkpoints.empty());
    const std::string path = temp / (std::string(variant) + ".gguf");
    test::write_gguf_of(golden.checkpoints.front(), path);
    check_prompts(golden.prompts, *open(path));
  }
}

}  // namespace
}  // namespace spillway::gguf_test
