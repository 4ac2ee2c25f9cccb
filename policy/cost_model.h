// The cost of a sweep on a machine, by resource: resource_seconds(). Planned work costed at the
// rates of a hardware profile predicts a run (predict()), logged work at measured ceilings bounds
// it (bound.h), and the steps of a simulation (simulation/) are made of the same terms.
//
// A run's prediction: every sweep takes as long as the resource with most to do, since transfers
// and arithmetic overlap, attention by the CPU beside a device in part (predict()); without
// overlap, as long as all of them one after another. FlexGen's own model, for comparison, is
// flexgen_cost.h. Pure arithmetic, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/linear_shapes.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "policy/batching.h"
#include "policy/hardware_profile.h"
#include "policy/sweep_schedule.h"
#include "policy/sweep_work.h"

namespace spillway {

enum class Resource : uint8_t {
  kCompute,     // Matrix products and attention, measured with their operands in memory; on the CPU
                // also its work for the disk
  kMemory,      // The compute device's memory: weights and cached rows read once
  kHostMemory,  // With a discrete device: staging in pinned host memory
  kDiskRead,
  kDiskWrite,
  kHostToDevice,
  kDeviceToHost,
  kHostCompute,  // With a discrete device: the CPU's attention over the cache in host memory
};
constexpr size_t kResources = 8;
constexpr size_t index(Resource resource) {
  return static_cast<size_t>(resource);
}
std::string_view resource_name(Resource resource);  // "compute", "memory", "disk read", ...
using ResourceSeconds = std::array<double, kResources>;

// A plan as the cost model sees it: a model and the bytes that a sweep transfers between tiers.
struct CostedPlan {
  ModelShape shape;
  Format format = Format::kF32;  // The weights' format
  Format kv_format = Format::kF16;
  uint64_t weight_bytes = 0;           // Read by the kernels in a sweep
  double weight_bytes_for_logits = 0;  // The part needed only by rows that reach logits
  uint64_t weights_from_disk = 0, weights_on_host = 0;  // Transferred in a sweep

  uint64_t kv_row_bytes = 0;   // Bytes of one position, all layers
  uint64_t kv_sent_bytes = 0;  // Bytes that a decoding sequence writes back per step, all layers
  // A discrete device returns all rows that it read, of which kv_sent_bytes are written to disk:
  // only the device knows which rows a rule has moved.
  bool kv_returns_whole = false;
  double kv_on_disk = 0, kv_on_host = 0;  // Shares of the cache; host: below a discrete device
  bool host_attention = false;            // Decode steps over kv_on_host run on the CPU
  double activations_on_disk = 0, activations_on_host = 0;

  MicroBatchLimits micro_batch;
  int64_t head_rows = 64;  // Logit rows computed at a time
  bool discrete = false;   // The device has its own memory, so there is a link
  bool overlap = true;
  bool head = true;  // Whether the layers are the model's last: its logits are made here

  // What crosses the link: bytes of weights, shares of the others. A CPU's device memory is the
  // host's: nothing does.
  uint64_t weights_over_link() const { return discrete ? weights_from_disk + weights_on_host : 0; }
  double kv_over_link() const { return discrete ? kv_on_disk + kv_on_host : 0; }
  double activations_over_link() const {
    return discrete ? activations_on_disk + activations_on_host : 0;
  }
};

// Fills in the weight bytes that kernels read. `matrix_bytes` gives the bytes of one matrix of each
// shape in the format and layout in which they read it.
void count_weight_bytes(const std::function<uint64_t(const LinearShape&)>& matrix_bytes,
                        CostedPlan* plan);

// A machine's rates per second: bytes, or operations where stated. 0: not measured.
class SweepRates {
 public:
  virtual ~SweepRates() = default;

  // Seconds per matrix element for `rows` input rows. The rows belong to a micro-batch of
  // `batch_rows`, of which only some may continue after the last layer's attention.
  virtual double seconds_per_weight(const LinearShape& linear, int64_t rows,
                                    int64_t batch_rows) const = 0;

  double prompt_attention = 0;  // FLOP/s of its two matrix products
  // Bytes/s of cached rows, by the processor; 0: limited by memory alone
  double decode_attention = 0;
  double host_attention = 0;  // Like decode_attention, for the CPU beside a discrete device
  double memory = 0, host_memory = 0;
  double cache = 0;  // Memory rate of reading cached rows; 0: the rate of all other reads
  double disk_read = 0, disk_write = 0;
  // Seconds of the processor per byte from or to disk, where the CPU computes
  double compute_per_disk_byte = 0;
  double to_device = 0, to_host = 0;
  // Seconds that an op of a discrete device takes however little it has to do, and that rows take
  // to the host and back, waits included
  double small_op = 0, round_trip = 0;
};

// Rates taken from a profile. Between measured batch sizes the time of a matrix product is linear
// in its rows, above the largest it is proportional; a format that was not measured uses the
// profile's nearest.
class MachineRates final : public SweepRates {
 public:
  // kInvalidArgument names the figure that the profile lacks for this plan.
  static Result<MachineRates> of(const HardwareProfile& hardware, const CostedPlan& plan);

  // The time for a matrix of any shape.
  double seconds_per_weight(int64_t rows) const;
  double seconds_per_weight(const LinearShape&, int64_t rows, int64_t) const override {
    return seconds_per_weight(rows);
  }

 private:
  struct Height {
    double rows, seconds;
  };
  std::vector<Height> heights_;  // Ascending
};

// Whether the CPU attends to a cache in host memory faster than the link uploads it to the device.
// False where one of the two was not measured.
bool host_attention_pays(const HardwareProfile& hardware);

// Options of how a sweep is computed. A bound asks for the least that any engine must do, a
// prediction for what ours does: these are their differences.
struct SweepExecution {
  // The weights are read once for each micro-batch. As many of its rows as it has items continue
  // after the last layer's attention.
  std::span<const MicroBatch> micro_batches;
  int64_t head_rows = 0;  // Logit rows computed at a time; 0: all
  // All rows of prompts attend in the last layer, not only those that reach logits. Only KV rules
  // that keep rows by score need it; our engine always does it.
  bool last_layer_attends = true;
  bool activations = true;  // Activations pass through memory between the matrix products.
};

// The time that each resource works for a sweep, at these rates. The plan describes the model; the
// transferred bytes are those of `work`, whatever the plan's shares of the tiers. REQUIRES: rates
// of prompt attention and memory.
ResourceSeconds resource_seconds(const CostedPlan& plan, const SweepWork& work,
                                 const SweepExecution& execution, const SweepRates& rates);

// The following are terms of resource_seconds(), from which the simulation makes the steps of a
// micro-batch.

// Time of a micro-batch's matrix products in all layers, with the last one counted like the others;
// and the time saved in the last layer by rows that need not continue.
struct ProductSeconds {
  double layers = 0, saved_in_last = 0;
};
ProductSeconds product_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                               const MicroBatch& batch, bool last_layer_attends = true);
double head_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                    int64_t logit_rows, int64_t head_rows);
// Seconds of one layer.
double prompt_attention_seconds(const ModelShape& shape, const SweepRates& rates, double pairs);
double activation_seconds(const ModelShape& shape, const SweepRates& rates, double tokens);
// Seconds of one layer and micro-batch that its ops take however few its rows are.
double small_op_seconds(const ModelShape& shape, const SweepRates& rates);

// Bytes that a token and layer read and write in memory besides matrices and cache.
double activation_traffic(const ModelShape& shape);

// Bytes of a sweep's KV cache, all layers, on any tier.
struct KvTraffic {
  double read = 0;                          // Read by decode steps
  double prompts_sent = 0, steps_sent = 0;  // New or changed rows written to disk
  double steps_returned = 0;                // Rows of steps returned by a discrete device
};
KvTraffic kv_traffic(const CostedPlan& plan, const SweepWork& work);

// The share of the cache that decode steps attend to on the CPU.
double attended_by_host(const CostedPlan& plan);

// The mean sweep of the group, with logits and bytes filled in from the plan.
SweepWork planned_work(const CostedPlan& plan, const PlannedSweeps& sweeps);

// Micro-batches as the engine forms them, except that prompts begin a micro-batch of their own and
// all prompts of a sweep have their mean length.
std::vector<MicroBatch> planned_micro_batches(const CostedPlan& plan, const SweepWork& work);

// Resource times of the mean sweep of the group.
ResourceSeconds sweep_cost(const CostedPlan& plan, const MachineRates& rates,
                           const PlannedSweeps& sweeps);

// The seconds that such a sweep takes: its slowest resource's, or without overlap all of them.
double sweep_seconds(const CostedPlan& plan, const MachineRates& rates,
                     const PlannedSweeps& sweeps);

struct Prediction {
  double prefill_seconds = 0;                // Until the last sequence has its first token
  double decode_seconds = 0;                 // The rest
  int64_t generated = 0;                     // Tokens
  ResourceSeconds busy{};                    // Times of the whole run
  Resource bottleneck = Resource::kCompute;  // The resource that was slowest for the longest time
  double seconds() const { return prefill_seconds + decode_seconds; }
  double tokens_per_second() const {
    return seconds() > 0 ? static_cast<double>(generated) / seconds() : 0;
  }
};

// The prediction for a longer run, from those of two shorter ones of the same kind: what `longer`
// takes beyond `shorter`, `times` more.
Prediction prolonged(const Prediction& shorter, const Prediction& longer, double times);

// `unlimited`: a resource taken as infinitely fast, to show the effect of relieving it.
Prediction predict(const CostedPlan& plan, const MachineRates& rates,
                   std::span<const PlannedSweeps> sweeps, std::optional<Resource> unlimited = {});

}  // namespace spillway
