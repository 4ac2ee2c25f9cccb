// What a sweep costs on a machine, by resource: resource_seconds(). Planned work costed at the
// rates of a hardware profile predicts a run (predict()), logged work at measured ceilings bounds
// it (bound.h), and the steps of a simulation (simulation/) are made of the same terms.
//
// A run's prediction: every sweep takes as long as the resource with most to do, since transfers
// and arithmetic really overlap; without overlap, as long as all of them one after another.
// FlexGen's own model, for comparison, is flexgen_cost.h. Pure arithmetic, any thread.
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
constexpr size_t index(Resource resource) {
  return static_cast<size_t>(resource);
}
std::string_view resource_name(Resource resource);  // "compute", "memory", "disk read", ...
using ResourceSeconds = std::array<double, kResources>;

// A plan as its cost sees it: a model and where it lies, in the bytes that a sweep moves.
struct CostedPlan {
  ModelShape shape;
  Format format = Format::kF32;  // Of weights
  Format kv_format = Format::kF16;
  uint64_t weight_bytes = 0;                              // Read by the kernels in a sweep
  double weight_bytes_for_logits = 0;                     // Of these, where a row reaches logits
  uint64_t weights_from_disk = 0, weights_to_device = 0;  // Transferred in a sweep

  uint64_t kv_row_bytes = 0;   // Of one position, all layers
  uint64_t kv_sent_bytes = 0;  // What a decoding sequence sends home from a step, all layers
  // On a device with memory of its own it sends all that it read, of which the disk is written
  // kv_sent_bytes: which rows a rule has moved is known on the device alone.
  bool kv_returns_whole = false;
  double kv_on_disk = 0, kv_on_host = 0;  // Shares of the cache; host: of a device's own memory
  bool host_attention = false;            // Decode steps over kv_on_host run on the CPU
  double activations_on_disk = 0, activations_on_host = 0;

  MicroBatchLimits micro_batch;
  int64_t head_rows = 64;  // Rows of logits made at a time
  bool discrete = false;   // The device has some: there is a link
  bool overlap = true;
};

// Fills in the weight bytes that kernels read, given those of one matrix of each shape in the
// format and layout in which they read it.
void count_weight_bytes(const std::function<uint64_t(const LinearShape&)>& matrix_bytes,
                        CostedPlan* plan);

// What a machine does in a second: bytes, or where it says so operations. 0: not measured.
class SweepRates {
 public:
  virtual ~SweepRates() = default;

  // Seconds of `rows` activations times one element of such a matrix. They are of a micro-batch of
  // `batch_rows`, of which fewer may go on behind the last layer's attention.
  virtual double seconds_per_weight(const LinearShape& linear, int64_t rows,
                                    int64_t batch_rows) const = 0;

  double prompt_attention = 0;  // FLOP/s of its two products
  // Of cached rows, by the processor; 0: their reading is memory's work alone.
  double decode_attention = 0;
  double host_attention = 0;  // The same of the CPU beside a device
  double memory = 0, host_memory = 0;
  double cache = 0;  // Memory's, reading cached rows; 0: as whatever else is read
  double disk_read = 0, disk_write = 0;
  // Of the processor's time that each byte from or to disk takes, where the CPU is what computes.
  double compute_per_disk_byte = 0;
  double to_device = 0, to_host = 0;
};

// Reads rates out of a profile: between measured heights a product's time goes linearly with its
// rows, above the largest in proportion; a format that was not measured takes the profile's
// nearest.
class MachineRates final : public SweepRates {
 public:
  // kInvalidArgument names what the profile lacks for this plan.
  static Result<MachineRates> of(const HardwareProfile& hardware, const CostedPlan& plan);

  // Of a matrix of any shape.
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

// Whether the CPU attends to a cache in host memory faster than the link brings it to the device.
// False where one of the two was not measured.
bool host_attention_pays(const HardwareProfile& hardware);

// How a sweep is computed. A bound asks for the least that any engine must do, a prediction for
// what ours does: these are their differences.
struct SweepExecution {
  // The weights are read once for each. Of its rows, as many as it has items go on behind the last
  // layer's attention.
  std::span<const MicroBatch> micro_batches;
  int64_t head_rows = 0;  // Rows of logits made at a time; 0: all
  // All rows of prompts attend in the last layer, not only those that reach logits: needed where
  // the KV rule keeps rows by score, done always.
  bool last_layer_attends = true;
  bool activations = true;  // They pass through memory between the products.
};

// How long each resource works for a sweep, at these rates. The plan says what the model is; how
// much is transferred is in `work`, whatever the plan's shares of the tiers. REQUIRES: rates of
// prompt attention and memory.
ResourceSeconds resource_seconds(const CostedPlan& plan, const SweepWork& work,
                                 const SweepExecution& execution, const SweepRates& rates);

// The terms of resource_seconds(), from which the simulation makes the steps of a micro-batch.

// The matrix products of a micro-batch in all layers, the last one as all others; and what is saved
// there by the rows that go no further.
struct ProductSeconds {
  double layers = 0, saved_in_last = 0;
};
ProductSeconds product_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                               const MicroBatch& batch, bool last_layer_attends = true);
double head_seconds(std::span<const LinearShape> linears, const SweepRates& rates,
                    int64_t logit_rows, int64_t head_rows);
// Of one layer.
double prompt_attention_seconds(const ModelShape& shape, const SweepRates& rates, double pairs);
double activation_seconds(const ModelShape& shape, const SweepRates& rates, double tokens);

// What a token and layer read and write besides matrices and cache, in memory.
double activation_traffic(const ModelShape& shape);

// Bytes of a sweep's KV cache, all layers, wherever it lies.
struct KvTraffic {
  double read = 0;                          // By decode steps
  double prompts_sent = 0, steps_sent = 0;  // New or changed: to disk
  double steps_returned = 0;                // Of steps, from a device with memory of its own
};
KvTraffic kv_traffic(const CostedPlan& plan, const SweepWork& work);

// The share of the cache over which decode steps are the CPU's.
double attended_by_host(const CostedPlan& plan);

// The sweeps' mean with all that the plan has to say of it: logits and bytes.
SweepWork planned_work(const CostedPlan& plan, const PlannedSweeps& sweeps);

// As the engine cuts them, but that prompts begin a micro-batch of their own, and that all prompts
// of a sweep are as long as their mean.
std::vector<MicroBatch> planned_micro_batches(const CostedPlan& plan, const SweepWork& work);

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
