// `spillway generate`: one prompt, its completion streamed to stdout, statistics on stderr.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/common/served_model.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

// Exactly one of prompt, prompt_file and prompt_tokens is given.
struct GenerateFlags {
  std::string prompt;
  std::string prompt_file;
  std::string prompt_tokens;  // "5,7,9"
  bool chat = false;          // The prompt is a user's message for the model's chat template
  std::string system;         // The system message in front of it; with `chat` only

  int64_t max_tokens = 64;
  int64_t min_tokens = 0;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::string stop;
  bool ignore_eos = false;
  bool echo = false;
  std::optional<int64_t> logprobs;  // With --json only
  bool json = false;                // The answer of the API instead of text
};

// The body of /v1/completions, or with `chat` of /v1/chat/completions, equivalent to the flags.
// Reads the prompt file.
Result<std::string> generate_body(const GenerateFlags& flags, uint64_t seed);

// Writes the completion to `out`; token ids when the model has no tokenizer. kInvalidArgument when
// the model refuses the request, kCancelled after SIGINT or SIGTERM. Main thread; blocks.
Status run_generate(const GenerateFlags& flags, uint64_t seed, const ServedModel& model,
                    std::FILE* out);

Command generate_command(const OpenModel& open);

}  // namespace spillway
