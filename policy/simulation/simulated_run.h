// The result of a simulated run: its time, and the causes of its processors' waits. Where many
// sweeps are alike, some are simulated and stand for the others. Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/simulation/simulation.h"

namespace spillway {

struct SimulatedRun {
  double prefill_seconds = 0;  // Until the last sequence has its first token
  double decode_seconds = 0;   // The rest, to the last byte written back
  int64_t generated = 0;       // Tokens
  double seconds() const { return prefill_seconds + decode_seconds; }
  double tokens_per_second() const {
    return seconds() > 0 ? static_cast<double>(generated) / seconds() : 0;
  }

  struct Part {
    std::string name;
    double seconds;
  };
  std::vector<Part> waits;      // Causes of the processors' idle time, longest first
  std::vector<Part> resources;  // Busy time, in the order of the timeline

  int64_t sweeps = 0, sweeps_simulated = 0;
  Simulation timeline;  // The simulated sweeps only
  std::vector<Simulation::Resource> processors;
};

// A section of the timeline: from the end of the previous one to the end of a task.
struct SimulatedStretch {
  Simulation::Task end;
  double weight;  // Times it is counted: once for itself, and once for each section it represents
  bool prefill;
};

// Runs the timeline and fills in times, waits and resources. The last stretch ends with the last
// task of the timeline. REQUIRES: stretches in order of time; processors are set.
void finish_run(std::span<const SimulatedStretch> stretches, SimulatedRun* run);

}  // namespace spillway
