// The sizes of the parts of an engine's memory, from which engine_bytes() tells a plan what it
// takes, and by which the engine allocates. Pure arithmetic, any thread.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/model_shape.h"
#include "offload/activation_store.h"
#include "scheduler/engine/engine.h"

namespace spillway {

struct EngineSizes {
  int64_t batch_rows;
  int64_t selected_rows = kHeadRows;  // Capacity of the head
  uint64_t expanded = 0, rounded = 0, rotary = 0;
  uint64_t logits = 0;  // Copies in host memory, for a discrete device
  ActivationStoreOptions activations{};
};

EngineSizes sizes_of(bool discrete, const ModelShape& shape, DType activation,
                     const EngineOptions& options);

// Most rows of a micro-batch of decode steps, to whose caches in host memory the CPU attends.
int64_t host_rows_max(const EngineOptions& options);

}  // namespace spillway
