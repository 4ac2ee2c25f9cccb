// `spillway bench`: times a fixed block of equal sequences and compares it with the bounds from
// this machine's own rates, measured in the same process before, during and after.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct BenchFlags {
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 32;
  int64_t sequences = 32;
  // Requests that wait at the start, more than the block holds; 0: `sequences` run at once. From
  // then on `sequences` is their number.
  int64_t requests = 0;
  int64_t decode_steps = 0;  // Steps to run before projecting the rest; 0: all
  bool json = false;
  bool check = false;  // A missed gate or a beaten bound ends it with status 1 (bench_check.h).
};

// Returns the exit status. Prints a table, or with --json one object (bench_report.h).
int run_bench(const BenchFlags& flags, const EngineFlags& engine, const std::string& model);

Command bench_command();

}  // namespace spillway
