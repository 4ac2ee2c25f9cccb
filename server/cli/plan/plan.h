// `spillway plan`: finds the best plan for a machine and a workload, predicts its throughput and
// explains it.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct PlanFlags {
  std::string hardware;  // A profile's file; empty: this machine's
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 32;
  int64_t sequences = 0;  // 0: one block of the best size
  std::string cost_model = "spillway";
  std::string workload;        // A file of requests instead of these three; empty: none
  double latency_seconds = 0;  // Limit for a full block; 0: no limit
  bool search_formats = false;
  bool frontier = false;
  bool explain = false;
  bool simulate = false;
  int64_t cluster = 0;            // Machines to simulate, 1 up to this number; 0: no cluster
  double cluster_network = 1.25;  // GB/s from each machine to the next
  bool json = false;
  std::string output;  // A file; empty: none
};

// Checks that the flags fit together.
Status validate(const PlanFlags& flags);

// Returns the exit status.
int run_plan(const PlanFlags& flags, const EngineFlags& engine, const std::string& model);

Command plan_command();

}  // namespace spillway
