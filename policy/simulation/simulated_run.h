// What comes of a simulated run: its time, and what its processors waited for. Where many sweeps
// are alike, some are simulated and stand for the others. Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/simulation/simulation.h"

namespace spillway {

struct SimulatedRun {
  double prefill_seconds = 0;  // Until the last sequence has its first token
  double decode_seconds = 0;   // The rest, to the last byte that goes home
  int64_t generated = 0;       // Tokens
  double seconds() const { return prefill_seconds + decode_seconds; }
  double tokens_per_second() const {
    return seconds() > 0 ? static_cast<double>(generated) / seconds() : 0;
  }

  struct Part {
    std::string name;
    double seconds;
  };
  std::vector<Part> waits;      // The processors stood still for this, longest first
  std::vector<Part> resources;  // Busy, in the order of the timeline

  int64_t sweeps = 0, sweeps_simulated = 0;
  Simulation timeline;  // Of those that were simulated
  std::vector<Simulation::Resource> processors;
};

// A piece of the timeline up to the end of a task, from the end of the one before.
struct SimulatedStretch {
  Simulation::Task end;
  double weight;  // As often it is counted: once, and for what it stands for
  bool prefill;
};

// Runs the timeline and fills in times, waits and resources. The last stretch ends with the last
// task of all. REQUIRES: stretches in order of time; processors are set.
void finish_run(std::span<const SimulatedStretch> stretches, SimulatedRun* run);

}  // namespace spillway
