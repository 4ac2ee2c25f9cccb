// `spillway generate` on a made-up scheduler.
#include "server/cli/generate/generate.h"

#include <catch2/catch.hpp>

#include "tests/server/cli/batch/batch_fixture.h"

namespace spillway::generate_test {
namespace {

using batch_test::MadeUpScheduler;

struct Outcome {
  Status status;
  std::string text;
};

Outcome generate(const GenerateFlags& flags, uint64_t seed, MadeUpScheduler& scheduler) {
  ServedModel model;
  model.context.shape = &scheduler.shape();
  model.context.model_names = {"tiny"};
  model.scheduler = &scheduler;
  std::FILE* out = std::tmpfile();
  Outcome outcome;
  outcome.status = run_generate(flags, seed, model, out);
  std::rewind(out);
  for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) {
    outcome.text += static_cast<char>(c);
  }
  std::fclose(out);
  return outcome;
}

GenerateFlags token_prompt() {
  GenerateFlags flags;
  flags.prompt_tokens = "5,7";
  flags.max_tokens = 3;
  return flags;
}

TEST_CASE("a model without tokenizer prints the ids that the scheduler drew") {
  MadeUpScheduler scheduler;
  Request request;
  request.prompt = {5, 7};
  request.sampling.seed = 4;
  std::string wanted;
  for (int32_t t = 0; t < 3; ++t) {
    wanted += std::to_string(MadeUpScheduler::token_of(request, t)) + " ";
  }
  const Outcome outcome = generate(token_prompt(), 4, scheduler);
  CHECK(outcome.status.ok());
  CHECK(outcome.text == wanted + "\n");
}

TEST_CASE("the flag json prints the answer of /v1/completions") {
  MadeUpScheduler scheduler;
  GenerateFlags flags = token_prompt();
  flags.json = true;
  const auto answer = nlohmann::json::parse(generate(flags, 4, scheduler).text);
  CHECK(answer["object"] == "text_completion");
  CHECK(answer["choices"][0]["token_ids"].size() == 3);
  CHECK(answer["usage"]["prompt_tokens"] == 2);
}

TEST_CASE("what the model refuses is bad input, a broken engine is not") {
  MadeUpScheduler scheduler;
  GenerateFlags flags = token_prompt();
  flags.prompt_tokens = "5,1000";
  CHECK(generate(flags, 0, scheduler).status.code() == Code::kInvalidArgument);
  for (const char* bad : {"5,", ",5", "5;7", "x", "5, 7", "99999999999"}) {
    flags.prompt_tokens = bad;
    CHECK(generate(flags, 0, scheduler).status.code() == Code::kInvalidArgument);
  }
  flags = token_prompt();
  flags.prompt_tokens.clear();
  flags.prompt_file = "/no/such/file";
  CHECK(generate(flags, 0, scheduler).status.code() == Code::kNotFound);
  scheduler.break_after_tokens = 1;
  const Status broken = generate(token_prompt(), 0, scheduler).status;
  CHECK(exit_status_of(broken) == 1);
  CHECK(std::string(broken.message()) == "The engine failed while it ran this request: broken");
}

TEST_CASE("generate ends with 2 where the model is damaged, with 1 where the disk fails") {
  const auto exit_with = [](const Status& end) {
    std::vector<Command> commands;
    commands.push_back(
        generate_command([&](const std::string&, const EngineFlags&,
                             const OpenFor&) -> Result<ServedModel> { return end; }));
    const char* const words[] = {"spillway", "generate", "m", "--prompt", "a"};
    return run_command_line(commands, 5, words, [](const char*) -> const char* { return nullptr; });
  };
  CHECK(exit_with(corruption("cut off")) == kExitUsage);
  CHECK(exit_with({Code::kIoError, "disk"}) == kExitFailure);
}

TEST_CASE("SIGINT ends the completion") {
  GenerateFlags flags = token_prompt();
  flags.max_tokens = 500;
  MadeUpScheduler slow(4, std::chrono::milliseconds(5));
  slow.interrupt_after_tokens = 5;
  const Outcome outcome = generate(flags, 0, slow);
  CHECK(outcome.status.code() == Code::kCancelled);
  CHECK(slow.stats().generated_tokens < 500);
}

TEST_CASE("flags become the body of a request, whatever bytes the prompt has") {
  GenerateFlags flags;
  flags.prompt = "a\xFF\"\n";
  flags.temperature = 0.5;
  flags.stop = "x,y";
  const auto body = nlohmann::json::parse(generate_body(flags, UINT64_MAX).value());
  CHECK(body["prompt"] == "a\xEF\xBF\xBD\"\n");
  CHECK(body["temperature"] == 0.5);
  CHECK(body["stop"] == "x,y");
  CHECK(body["seed"] == INT64_MAX);
  CHECK(body["stream"] == true);
}

}  // namespace
}  // namespace spillway::generate_test
