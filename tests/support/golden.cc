#include "tests/support/golden.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/places.h"

namespace spillway::test {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

fs::path golden_directory() {
  return fs::path(test::source_directory()) / "tests" / "golden";
}

GoldenLogits logits_of(const json& from) {
  return {from.at("first"), from.at("top_ids"), from.at("top")};
}

// The first entry stands for the first token, which has no distribution.
std::vector<float> prompt_logprobs_of(const json& prompt) {
  std::vector<float> logprobs;
  if (!prompt.contains("prompt_logprobs") || prompt["prompt_logprobs"].is_null()) return logprobs;
  for (const json& value : prompt["prompt_logprobs"]) {
    if (!value.is_null()) logprobs.push_back(value.get<float>());
  }
  return logprobs;
}

GoldenPrompt prompt_of(const json& from) {
  GoldenPrompt prompt;
  prompt.prompt = from.at("prompt").get<std::vector<int32_t>>();
  prompt.tokens = from.at("tokens").get<std::vector<int32_t>>();
  prompt.logits_prompt = logits_of(from.at("logits_prompt"));
  prompt.logits_last = logits_of(from.at("logits_last"));
  prompt.logprobs = from.at("logprobs").get<std::vector<float>>();
  for (const json& top : from.at("top_logprobs")) {
    prompt.top_logprobs.push_back({top.at("step"), top.at("ids"), top.at("logprobs")});
  }
  prompt.prompt_logprobs = prompt_logprobs_of(from);
  return prompt;
}

}  // namespace

std::vector<std::string> golden_variants() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_directory() / "checkpoints")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden read_golden(const std::string& variant) {
  std::ifstream file(golden_directory() / (variant + ".json"));
  const json from = json::parse(file);
  Golden golden;
  golden.variant = variant;
  if (variant == "demo") {
    golden.checkpoints.push_back(fs::path(test::source_directory()) / "configs" / "demo");
  } else {
    const fs::path checkpoints = golden_directory() / "checkpoints" / variant;
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      golden.checkpoints.push_back(entry.path());
    }
  }
  for (const json& prompt : from.at("prompts")) golden.prompts.push_back(prompt_of(prompt));
  return golden;
}

TemporaryCache::TemporaryCache() {
  std::string pattern = (fs::temp_directory_path() / "spillway-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
  if (const char* before = getenv("SPILLWAY_CACHE")) before_ = before;
  setenv("SPILLWAY_CACHE", path_.c_str(), 1);
}

TemporaryCache::~TemporaryCache() {
  if (before_) {
    setenv("SPILLWAY_CACHE", before_->c_str(), 1);
  } else {
    unsetenv("SPILLWAY_CACHE");
  }
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace spillway::test
