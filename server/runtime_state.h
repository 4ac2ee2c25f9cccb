// The parts of a Runtime, in the order in which they depend on each other: the last is destroyed
// first. For runtime.cc and runtime_open.cc alone.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"
#include "offload/io/io.h"
#include "offload/io/transfer.h"
#include "offload/weight_store.h"
#include "scheduler/scheduler.h"
#include "server/runtime.h"

namespace spillway {

struct Runtime::State {
  OpenedModel opened;
  std::shared_ptr<RankGroup> ranks;  // Null: one rank
  std::unique_ptr<Device> host;  // The CPU, where it runs attention beside the device; else null
  std::unique_ptr<Io> io;        // Io and transfers are null while nothing lives on disk.
  std::unique_ptr<TransferQueue> transfers;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;      // Until it is moved into a scheduler
  std::unique_ptr<OtherRanks> others;  // Likewise. Null: the engine has the whole model, or follows
  std::unique_ptr<Scheduler> scheduler;
  Plan plan;
};

}  // namespace spillway
