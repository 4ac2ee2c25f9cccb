// GGUF files made of the golden checkpoints, against transformers: the same greedy tokens, logprobs
// within 1e-3.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "server/runtime.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/gguf_of_checkpoint.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace spillway {
namespace {

using test::CollectingSink;
using test::GoldenPrompt;

constexpr double kLogprobError = 1e-3;

std::unique_ptr<Runtime> open(const std::string& model) {
  EngineFlags flags;
  flags.format = Format::kF32;
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
}  // namespace spillway
