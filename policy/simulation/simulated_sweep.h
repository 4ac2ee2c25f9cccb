// The engine's schedule (scheduler/engine/engine.cc) as tasks of a simulation: the time of a plan
// on a machine including stalls, where the cost model (cost_model.h) knows only the slowest
// resource.
//
// As in the engine, the processor works layer by layer and, inside a layer, micro-batch by
// micro-batch. Weights are staged in their rings in pieces, in the order of use, as far ahead as
// the rings have space, across layers and sweeps, with two pieces requested from the disk at a
// time. The cache of each micro-batch is uploaded through its rings within a sweep and written back
// behind the work; attention over a part of a micro-batch begins when that part has arrived.
// Activations that live on another tier are streamed likewise. Without overlap all of it runs one
// after another.
//
// A processor's step takes the longer of arithmetic and of reading its operands from memory. Left
// out: the host's other work (sampling, launching), and that both directions of a link and of a
// disk disturb each other. Streamed weights are spread evenly over the layers.
//
// Several machines: each has a contiguous range of the layers. There are as many blocks in flight
// as machines, each passing through all of them sweep by sweep; activations are sent over a
// network, micro-batch by micro-batch. Every machine has the given rates and rings of its own.
//
// Pure arithmetic, any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "policy/cost_model.h"
#include "policy/simulation/simulated_run.h"

namespace spillway {

// Bytes of the staging rings; each holds at least a layer's or a micro-batch's part, even if given
// less.
struct StagingRings {
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  double weights_from_disk = kUnlimited, weights_to_device = kUnlimited;
  double kv_from_disk = kUnlimited, kv_to_device = kUnlimited;
  double activations_from_disk = kUnlimited, activations_to_device = kUnlimited;
};

struct SimulatedCluster {
  int64_t machines = 1;                   // At most the number of layers
  double network_bytes_per_second = 1e9;  // From each machine to the next
};

constexpr int64_t kSimulatedTasksMax = 300'000;  // Half a second

// With more than `tasks_max` tasks, some sweeps stand for similar ones, in proportion to the cost
// model's times.
SimulatedRun simulate(const CostedPlan& plan, const MachineRates& rates,
                      std::span<const PlannedSweeps> sweeps, const StagingRings& rings,
                      const SimulatedCluster& cluster = {}, int64_t tasks_max = kSimulatedTasksMax);

}  // namespace spillway
