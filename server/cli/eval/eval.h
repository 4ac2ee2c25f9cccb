// `spillway eval`: perplexity of a text. Each window's first tokens are the prompt; the rest is
// scored token by token through the decode path, so that the KV rule acts as it does in generation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct EvalFlags {
  std::string text;             // A file
  int64_t context = 1024;       // Tokens of a window
  int64_t prompt_tokens = 512;  // The window's tokens that are in the prompt
  int64_t windows = 0;          // At most; 0: the whole text
  std::vector<int> kv_budgets;  // Per cent of a window's positions at which rules are compared
  bool json = false;
  uint64_t seed = 0;  // --seed: of a KV rule that draws
};

int run_eval(const EvalFlags& flags, const EngineFlags& engine, const std::string& model);

Command eval_command();

}  // namespace spillway
