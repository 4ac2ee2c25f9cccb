// The engine's schedule (scheduler/engine/engine.cc) as tasks of a simulation: what a plan gives on
// a machine with its stalls, where the cost model (cost_model.h) knows only the slowest resource.
//
// As the engine does it: layer by layer and, inside a layer, micro-batch by micro-batch, one after
// another on the processor. Weights pass through their rings in pieces, in the order of use, as
// far ahead as the rings have room, across layers and sweeps, with two pieces asked of the disk at
// a time. The cache of each micro-batch comes through its rings within a sweep and goes home
// behind the work; the attention of a part of a micro-batch begins when that part is there. So do
// activations that live elsewhere. Without overlap all of it goes one after another.
//
// A processor's step takes the longer of arithmetic and of reading its operands from memory. Left
// out: what the host does meanwhile (sampling, launching), and that both directions of a link and
// of a disk disturb each other. Streamed weights are spread evenly over the layers.
//
// Several machines: each has a run of the layers. As many blocks are under way as there are
// machines, each passing through all of them sweep by sweep; activations go on over a network,
// micro-batch by micro-batch. Every machine is as `rates` says and has `rings` of its own.
//
// Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "policy/cost_model.h"
#include "policy/simulation/simulated_run.h"

namespace spillway {

// Bytes of memory through which things pass; each holds a layer's or a micro-batch's part at least,
// whatever is said here.
struct StagingRings {
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  double weights_from_disk = kUnlimited, weights_to_device = kUnlimited;
  double kv_from_disk = kUnlimited, kv_to_device = kUnlimited;
  double activations_from_disk = kUnlimited, activations_to_device = kUnlimited;
};

struct SimulatedCluster {
  int64_t machines = 1;                   // At most the layers
  double network_bytes_per_second = 1e9;  // From each to the next
};

constexpr int64_t kSimulatedTasksMax = 300'000;  // Half a second

// Where there would be more than `tasks_max` tasks, some sweeps stand for others alike, in
// proportion to what the cost model says of them.
SimulatedRun simulate(const CostedPlan& plan, const MachineRates& rates,
                      std::span<const PlannedSweeps> sweeps, const StagingRings& rings,
                      const SimulatedCluster& cluster = {}, int64_t tasks_max = kSimulatedTasksMax);

}  // namespace spillway
