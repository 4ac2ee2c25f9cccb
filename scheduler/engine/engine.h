// Runs sweeps: one pass of a block of sequences over all layers (or a range of them), layer by
// layer and, inside a layer, micro-batch by micro-batch. Weights, KV cache and activations that
// live on disk arrive ahead of their use and leave behind it. Knows tokens and caches; what to run
// next, sampling and requests are the scheduler's.
//
// Thread rule: one thread, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/device.h"
#include "kernels/device_traits.h"
#include "offload/activation_store.h"
#include "offload/kv_cache.h"
#include "offload/weight_store.h"
#include "scheduler/engine/engine_buffers.h"
#include "scheduler/engine/expanded_layer.h"
#include "scheduler/engine/head.h"
#include "scheduler/engine/host_attention.h"
#include "scheduler/engine/kv_feed.h"
#include "scheduler/engine/rounded_biases.h"
#include "scheduler/engine/sweep_account.h"

namespace spillway {

struct EngineOptions {
  std::optional<LayerRange> layers;  // Those of the weights that it runs; none: all of the model
  Format kv_format = Format::kF32;
  uint64_t kv_bytes = 0;          // Of the device's memory
  uint64_t kv_host_bytes = 0;     // Of the host's, where the device has its own
  uint64_t kv_disk_bytes = 0;     // Of the scratch file
  uint64_t kv_staging_bytes = 0;  // Through which the latter passes; one layer of the longest
                                  // sequence at least
  uint64_t kv_ring_bytes = 0;     // The same of the device's own memory, for host and disk
  double activations_disk_share = 0;
  double activations_host_share = 0;  // Where the device has memory of its own
  int64_t sweep_tokens_max = 0;       // Tokens of one sweep, all sequences together.
  int64_t micro_batch_tokens =
      1024;  // A micro-batch is closed at this many (one prompt may exceed).
  int64_t micro_batch_sequences = 0;  // ... or at this many sequences; 0: no limit.
  bool overlap = true;                // False: one thing after another
  bool prefault_memory = false;       // All of it will be needed: brings it in before the first use
  // On a device with memory of its own, with 4-bit weights: expands those of a layer once for all
  // parts of a large block.
  bool expand_layer = false;
  // On a device with memory of its own: the CPU attends, in decode steps, to the share of the cache
  // that lies in host memory.
  bool host_attention = false;
  Device* host = nullptr;         // With it: the CPU. Outlives the engine.
  std::shared_ptr<SweepLog> log;  // Null: nobody measures.
  Trace* trace = nullptr;         // Null: none. Outlives the engine.
};

// What an engine with a disk tier needs besides: transfers, which must outlive it, and files with
// room for what their names say.
struct EngineScratch {
  TransferQueue* transfers = nullptr;
  File kv, activations;
};

// Bytes that an Engine takes besides weights, KV cache and its staging.
struct EngineBytes {
  uint64_t buffers = 0;         // Working memory
  uint64_t logits = 0;          // Copies in host memory, where the device has its own
  uint64_t host_attention = 0;  // Of host memory
  ActivationBytes activations;  // The residual stream
  // Of the two memories, where the device has its own; else all is of the host's.
  uint64_t device() const { return buffers + activations.memory + activations.device_ring; }
  uint64_t host() const { return logits + host_attention + activations.host + activations.staging; }
};
EngineBytes engine_bytes(const DeviceTraits& device, const ModelShape& shape, Format weights,
                         const EngineOptions& options);

// What an engine that runs a range of layers takes in and hands on: rows of the residual stream,
// float32 in host memory, one for each token of the sweep in its order.
struct StageRows {
  std::span<const float> in;  // Without the model's first layer, instead of the embeddings
  std::span<float> out;       // Without its last layer, instead of the logits
};

class Engine {
 public:
  // Takes all memory it will ever use. kCapacity when that does not fit. Device and weights must
  // outlive the engine.
  static Result<std::unique_ptr<Engine>> open(Device& device, WeightStore& weights,
                                              const EngineOptions& options,
                                              EngineScratch scratch = {});
  ~Engine();

  const ModelShape& shape() const { return weights_.shape(); }
  const EngineOptions& options() const { return options_; }
  const KvCache& kv() const { return *kv_; }

  // A cache for `rows` positions, until release(). kCapacity: no room now.
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {}) {
    return kv_->reserve(rows, budget);
  }
  void release(std::unique_ptr<KvSequence> sequence);

  // A sequence's cache of one layer after `positions` positions, copied from the tier where it
  // lies.
  Status read_kv(KvSequence& sequence, int64_t layer, int64_t positions,
                 std::vector<std::byte>* state, std::vector<std::byte>* rows);

  // Runs one sweep and hands out its logits. An error concerns the whole sweep: no item's cache may
  // be used any more; later sweeps may succeed. REQUIRES: total tokens <= sweep_tokens_max; token
  // ids below the vocabulary; position + tokens <= positions; rows that a range of layers takes and
  // hands on, and no others.
  Status run(std::span<const SweepItem> items, LogitsSink& sink, StageRows rows = {});

 private:
  Engine(Device& device, WeightStore& weights, const EngineOptions& options);
  Status allocate(EngineScratch scratch);
  Status allocate_rings();
  void plan_micro_batches(std::span<const SweepItem> items);
  Status sweep(std::span<const SweepItem> items, LogitsSink& sink, const StageRows& rows);
  Status embed();
  Status take_in(std::span<const float> rows);
  Status hand_on(std::span<float> rows);
  void embed_rows(const LayerWeights& weights, std::span<const int32_t> tokens,
                  std::span<const int32_t> positions, const MatrixView& hidden);
  Status run_layers(std::span<const SweepItem> items);
  Status run_layer(std::span<const SweepItem> items, int64_t layer, const LayerWeights& weights,
                   size_t index);
  Status finish_layer(std::span<const SweepItem> items, const LayerWeights& weights);
  void find_wanted(std::span<const SweepItem> items, const MicroBatch& batch);
  Status run_head(std::span<const SweepItem> items, LogitsSink& sink);
  Status to_host(std::byte* to, const std::byte* from, size_t bytes);
  Result<MatrixView> acquire_activations();
  TransferTotals transfer_totals() const;
  void abandon();

  Device& device_;
  WeightStore& weights_;
  EngineOptions options_;
  const LayerRange layers_;
  EngineScratch scratch_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvCache> kv_;
  std::optional<SpillStager> kv_stager_;
  std::optional<KvFeed> kv_feed_;
  std::unique_ptr<HostAttention> host_attention_;  // Null: the device attends to everything
  std::unique_ptr<ActivationStore> activations_;
  Buffer memory_;
  EngineBuffers buffers_;
  std::optional<ExpandedLayer> expanded_;
  std::optional<RoundedBiases> rounded_;
  Buffer kv_ring_memory_;
  std::optional<DeviceRing> kv_ring_;
  std::optional<Head> head_;

  SweepAccount account_;

  // Of the sweep that runs.
  std::vector<int32_t> tokens_, positions_;
  std::vector<MicroBatch> micro_batches_;
  // A micro-batch that has begun a layer and must finish it before the next but one begins.
  struct Begun {
    MatrixView hidden;
    const LayerBuffers* buffers;
    int64_t layer;
    size_t index;  // Of micro_batches_
    bool on_host;  // It waits for the CPU's attention.
  };
  std::optional<Begun> begun_;
  std::vector<int64_t> batch_rows_;
  std::vector<WantedRow> batch_wanted_;  // Of one micro-batch
  std::vector<int32_t> kept_rows_;       // ... that go on behind the last attention
};

}  // namespace spillway
