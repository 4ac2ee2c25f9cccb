// A plan: the tier of each part of a model's data, the sizes of sweeps, and the memory that these
// take. A value that make_plan() makes, the runtime carries out, and `plan` and `bench` report.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/weights.h"
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
  bool discrete = false;                             // The device has its own memory
  MatrixLayout matrix_layout = MatrixLayout::kRows;  // Of weights, on the device
  Format format = Format::kF32;                      // Of weights, or of most of their bytes
  // Of weights in several formats: their names (ModelFileTable::formats_text), and by role the
  // bytes of the matrices of all layers. Empty and 0: all weights are of `format`.
  std::string mixed_formats;
  std::array<uint64_t, kWeightRoles> mixed_bytes{};
  bool in_named_format = true;  // `format`, as a flag, stands for all of them (named_format())
  bool in_int8 = false;         // Some matmuls round activations to 8 bits

  // What each component carries out. Every setting stands in one of them alone.
  Placement placement;
  EngineOptions engine;  // Its pointers are null
  SchedulerOptions scheduling;

  std::string formats_text() const {
    return mixed_formats.empty() ? std::string(format_name(format)) : mixed_formats;
  }
  Format kv_format() const { return engine.kv_format; }
  const KvRule& kv_rule() const { return scheduling.kv_rule; }
  int64_t block_sequences() const { return scheduling.block_sequences_max; }
  int64_t prefill_tokens() const { return scheduling.prefill_tokens_max; }  // Per sweep
  int64_t prefill_target() const { return scheduling.prefill_target; }      // 0: none
  int64_t micro_batch_tokens() const { return engine.micro_batch_tokens; }
  int64_t micro_batch_sequences() const { return engine.micro_batch_sequences; }  // 0: no limit
  bool host_attention() const { return engine.host_attention; }

  uint64_t budget_bytes = 0;         // Host memory allowed, to all ranks together
  uint64_t process_bytes = 0;        // Part of it for the process itself, `requests` included
  RequestMemory requests;            // If the command takes requests
  uint64_t device_budget_bytes = 0;  // Device memory allowed; 0: not discrete
  // The placement's bytes as users see them: on a CPU, where device and host are one memory, split
  // as the flags say. Activations: working memory too.
  TierBytes weights, kv, activations;
  // As the flags pin them, else by bytes; activations: the rows that may leave the device.
  struct Percent {
    TierPercent weights = kAllOnDevice, kv = kAllOnDevice, activations = kAllOnDevice;
  } percent;
  // What the flags name: budgets, none being the free memory, and a sweep's prompt tokens.
  struct Asked {
    std::optional<uint64_t> device_memory_bytes, host_memory_bytes, disk_memory_bytes;
    std::optional<int64_t> prefill_tokens;
  } asked;
  int64_t longest_positions = 0;  // Positions of the longest planned sequence
  KvBudget longest_budget;        // The part of them that it keeps
  KvChunks longest_chunks;

  // Set when a run opens the plan.
  uint64_t device_limit_bytes = 0;  // Part of the device's budget that the run allocates itself
  std::vector<std::string> weights_files;  // Source of weights on disk, the parts of a striped one;
                                           // empty: none are on disk
  std::vector<std::string> disk_dirs;      // Folders of KV and activations on disk; empty: none
  std::vector<std::string> kv_files;  // Paths of the KV file's parts, valid while the runtime lives
  int64_t sequences_at_once = 0;      // Longest sequences that block and KV cache hold
  double load_seconds = 0;
  std::optional<QuantError> quantization;  // Error of a quantised file against its checkpoint
};

}  // namespace spillway
