// What a run costs on a machine: every sweep takes as long as the resource with most to do, since
// transfers and arithmetic really overlap; without overlap, as long as all of them one after
// another. MachineRates come from a hardware profile. FlexGen's own model, for
// comparison, is flexgen_cost.h. Pure arithmetic, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "policy/hardware_profile.h"
#include "policy/sweep_schedule.h"

namespace spillway {

enum class Resource : uint8_t {
  kCompute,     // Matrix products and attention, measured with their operands in memory, and what
                // a CPU that computes spends on the disk
  kMemory,      // The compute device's: weights and cached rows read once
  kHostMemory,  // Beside a device of its own: what passes through pinned memory
  kDiskRead,
  kDiskWrite,
  kHostToDevice,
  kDeviceToHost,
  kHostCompute,  // The CPU beside a device of its own: attention over the cache in host memory
};
constexpr size_t kResources = 8;
std::string_view resource_name(Resource resource);  // "compute", "memory", "disk read", ...
using ResourceSeconds = std::array<double, kResources>;

// A model and where it lies, in the bytes that a sweep moves.
struct CostedPlan {
  ModelShape shape;
  Format format = Format::kF32;  // Of weights
  Format kv_format = Format::kF16;
  uint64_t weight_bytes = 0;                              // Read by the kernels in a sweep
  uint64_t weights_from_disk = 0, weights_to_device = 0;  // Transferred in a sweep

  uint64_t kv_row_bytes = 0;   // Of one position, all layers
  uint64_t kv_sent_bytes = 0;  // What a decoding sequence sends home from a step, all layers
  // On a device with memory of its own it sends all that it read, of which the disk is written
  // kv_sent_bytes: which rows a rule has moved is known on the device alone.
  bool kv_returns_whole = false;
  double kv_on_disk = 0, kv_on_host = 0;  // Shares of the cache; host: of a device's own memory
  bool host_attention = false;            // Decode steps over kv_on_host run on the CPU
  double activations_on_disk = 0, activations_on_host = 0;

  int64_t micro_batch_tokens = 1024;
  int64_t micro_batch_sequences = 0;  // 0: no limit
  int64_t head_rows = 64;             // Rows of logits made at a time
  bool own_memory = false;            // The device has some: there is a link
  bool overlap = true;
};

// Reads rates out of a profile: between measured heights a product's time goes linearly with its
// rows, above the largest in proportion; a format that was not measured takes the profile's
// nearest.
class MachineRates {
 public:
  // kInvalidArgument names what the profile lacks for this plan.
  static Result<MachineRates> of(const HardwareProfile& hardware, const CostedPlan& plan);

  // Seconds of `rows` activations times one element of a weight matrix.
  double seconds_per_weight(int64_t rows) const;

  double prompt_attention = 0;  // FLOP/s
  double decode_attention = 0;  // Bytes/s, of the plan's format of KV
  double host_attention = 0;    // The same of the CPU beside a device
  double memory = 0, host_memory = 0;
  double disk_read = 0, disk_write = 0;
  // Of the processor's time that each byte from or to disk takes, where the CPU is what computes.
  double compute_per_disk_byte = 0;
  double to_device = 0, to_host = 0;

 private:
  struct Height {
    double rows, seconds;
  };
  std::vector<Height> heights_;  // Ascending
};

// Whether the CPU attends to a cache in host memory faster than the link brings it to the device.
// False where one of the two was not measured.
bool host_attention_pays(const HardwareProfile& hardware);

// A micro-batch of a sweep: whole sequences up to the limits, the decoding ones first.
struct PlannedMicroBatch {
  int64_t sequences = 0, tokens = 0;
  bool prompts = false;
  // Rows that the last layer computes behind its attention, as the engine does: those of the head.
  int64_t last_rows() const { return prompts ? sequences : tokens; }
};
std::vector<PlannedMicroBatch> planned_micro_batches(const CostedPlan& plan,
                                                     const PlannedSweeps& sweeps);

// Elements of one layer's matrices that its attention waits for, and of the others.
struct LayerElements {
  double qkv = 0, rest = 0;
};
LayerElements layer_elements(const ModelShape& shape);

// What a token and layer read and write besides matrices and cache, in memory.
double activation_traffic(const ModelShape& shape);

// Of one sweep of these.
ResourceSeconds sweep_cost(const CostedPlan& plan, const MachineRates& rates,
                           const PlannedSweeps& sweeps);

struct Prediction {
  double prefill_seconds = 0;                // Until the last sequence has its first token
  double decode_seconds = 0;                 // The rest
  int64_t generated = 0;                     // Tokens
  ResourceSeconds busy{};                    // Of the whole run
  Resource bottleneck = Resource::kCompute;  // Slowest longest
  double seconds() const { return prefill_seconds + decode_seconds; }
  double tokens_per_second() const {
    return seconds() > 0 ? static_cast<double>(generated) / seconds() : 0;
  }
};

// `unlimited`: a resource taken as infinitely fast, to see what relieving it would give.
Prediction predict(const CostedPlan& plan, const MachineRates& rates,
                   std::span<const PlannedSweeps> sweeps, std::optional<Resource> unlimited = {});

}  // namespace spillway
