// A plan: what of a model lives where, how it is cut into sweeps, and what that takes. A value that
// make_plan() makes and the runtime carries out; what `plan` and `bench` report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/model_shape.h"
#include "kernels/weight_layout.h"
#include "offload/placement.h"
#include "policy/kv_rule.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/engine/engine.h"
#include "scheduler/planning/memory_budget.h"
#include "scheduler/planning/tier_shares.h"

namespace spillway {

struct Plan {
  std::string model_name;
  ModelShape shape;
  bool discrete = false;                             // The device has memory of its own
  MatrixLayout matrix_layout = MatrixLayout::kRows;  // Of the weights, on the device
  Format format = Format::kF32;
  Format kv_format = Format::kF32;
  bool q4_in_int8 = false;  // Products with 4-bit weights round activations to 8 bits
  KvRule kv_rule;
  uint64_t budget_bytes = 0;           // Host memory allowed
  uint64_t process_bytes = 0;          // Of that, for the process itself, with the next
  RequestMemory requests;              // If they were asked for
  uint64_t device_budget_bytes = 0;    // The same of a device's own; 0: it has none
  uint64_t device_limit_bytes = 0;     // Of that, what the run takes itself: without the context
  TierBytes weights, kv, activations;  // Activations: working memory too
  // As the flags pin them, else by bytes; of activations those that may leave the device.
  struct Percent {
    TierPercent weights = kAllOnDevice, kv = kAllOnDevice, activations = kAllOnDevice;
  } percent;
  // Budgets that were asked for; none: what is free.
  struct Asked {
    std::optional<uint64_t> device_memory_bytes, host_memory_bytes, disk_memory_bytes;
  } asked;
  uint64_t staging_bytes = 0;         // Host memory through which what is on disk passes
  uint64_t device_staging_bytes = 0;  // A device's own, through which what is elsewhere passes
  // Of these two: what passes through the host's memory from disk, and into a device's own.
  RingBytes host_rings, device_rings;
  int64_t block_sequences = 0;
  int64_t longest_positions = 0;  // Of the longest sequence that is planned for,
  KvBudget longest_budget;        // and what it keeps of them
  int64_t micro_batch_tokens = 0;
  int64_t micro_batch_sequences = 0;  // 0: no limit
  int64_t prefill_tokens = 0;         // Prompt tokens of one sweep
  bool host_attention = false;        // Decode steps over KV in host memory run on the CPU

  // The same for those who carry it out.
  Placement placement;
  EngineOptions engine;  // Its pointers are null
  SchedulerOptions scheduling;

  // What a run adds when it opens.
  std::string weights_file;       // What weights on disk are read from; empty: none are on disk
  std::string disk_dir;           // Where KV and activations on disk lie; empty: none do
  std::string kv_file;            // What holds the KV there, to be opened while the runtime lives
  int64_t sequences_at_once = 0;  // Of the longest, that the block and the KV cache hold
  double load_seconds = 0;
  std::optional<QuantError> quantization;  // Of a packed quantised file against its checkpoint
};

}  // namespace spillway
