// `spillway plan`: finds the plan that makes the most of a machine for a workload, predicts what it
// gives and says why.
#pragma once

#include <cstdint>
#include <string>

#include "server/config/engine_flags.h"

namespace spillway {

struct PlanFlags {
  std::string hardware;  // A profile's file; empty: this machine's
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 32;
  int64_t sequences = 0;  // 0: one block of the size that is found
  std::string cost_model = "spillway";
  bool explain = false;
  bool json = false;
  std::string output;  // A file; empty: none
};

// Exit status.
int run_plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model);

}  // namespace spillway
