// The golden files that scripts/oracle writes: what transformers answers in float32.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace spillway::test {

struct GoldenLogits {
  std::vector<float> first;  // Of ids 0, 1, ...
  std::vector<int32_t> top_ids;
  std::vector<float> top;
};

struct GoldenTop {
  int64_t step = 0;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

struct GoldenPrompt {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // Greedy, end tokens ignored
  GoldenLogits logits_prompt, logits_last;
  std::vector<float> logprobs;  // Of `tokens`
  std::vector<GoldenTop> top_logprobs;
  std::vector<float> prompt_logprobs;  // Of prompt[1], prompt[2], ...; empty: not recorded
};

struct Golden {
  std::string variant;
  std::vector<std::string> checkpoints;  // Absolute directories, one a file format
  std::vector<GoldenPrompt> prompts;
};

// Names of the golden files with models, without the demo model's.
std::vector<std::string> golden_variants();
Golden read_golden(const std::string& variant);

// A fresh directory that is removed at the end of the scope, used as the cache of packed files
// (SPILLWAY_CACHE) meanwhile. One within another's scope gives way to it at its own end.
class TemporaryCache {
 public:
  TemporaryCache();
  ~TemporaryCache();
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<std::string> before_;
};

}  // namespace spillway::test
