// What a Runtime is made of, in the order in which things depend on each other: the last is
// destroyed first. For runtime.cc and runtime_open.cc alone.
#pragma once

#include <memory>
#include <string>

#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "offload/io/io.h"
#include "offload/io/transfer.h"
#include "offload/weight_store.h"
#include "scheduler/scheduler.h"
#include "server/runtime.h"

namespace spillway {

struct Runtime::State {
  std::unique_ptr<Trace> trace;  // Null: nothing is recorded.
  std::unique_ptr<Device> device;
  std::unique_ptr<Device> host;  // The CPU, where it attends in the device's place; else null
  std::unique_ptr<Io> io;        // These two: null while nothing lives on disk.
  std::unique_ptr<TransferQueue> transfers;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;  // Until a scheduler takes it
  std::unique_ptr<Scheduler> scheduler;
  std::string source;
  Plan plan;
};

}  // namespace spillway
