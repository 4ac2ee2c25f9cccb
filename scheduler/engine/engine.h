// Runs sweeps: one pass of a block of sequences over all layers (or a range of them), layer by
// layer and, inside a layer, micro-batch by micro-batch. Weights, KV cache and activations that
// live on disk are prefetched before their use and written back after it. Knows tokens and caches;
// the scheduler decides what runs next and owns sampling and requests.
//
// Thread rule: one thread, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/device.h"
#include "kernels/device_traits.h"
#include "kernels/rank_group.h"
#include "offload/activation_store.h"
#include "offload/kv_cache.h"
#include "offload/weight_store.h"
#include "scheduler/engine/engine_buffers.h"
#include "scheduler/engine/expanded_layer.h"
#include "scheduler/engine/head.h"
#include "scheduler/engine/host_attention.h"
#include "scheduler/engine/kv_feed.h"
#include "scheduler/engine/kv_mover.h"
#include "scheduler/engine/link_totals.h"
#include "scheduler/engine/rank_peers.h"
#include "scheduler/engine/rotary_table.h"
#include "scheduler/engine/rounded_biases.h"
#include "scheduler/engine/sweep_account.h"

namespace spillway {

// Host memory through which sequences are set aside.
constexpr uint64_t kAsideStagingBytes = uint64_t{4} << 20;

struct EngineOptions {
  std::optional<LayerRange> layers;  // The layers it runs, as in `weights`; none: all
  Format kv_format = Format::kF32;
  uint64_t kv_bytes = 0;          // KV cache in the device's memory
  uint64_t kv_host_bytes = 0;     // KV cache in host memory; discrete devices only
  uint64_t kv_disk_bytes = 0;     // KV cache in the scratch file
  uint64_t kv_staging_bytes = 0;  // Staging for it; at least one layer of the longest sequence
  uint64_t kv_aside_bytes = 0;    // Of the scratch file, behind these: sequences set aside
  uint64_t kv_ring_bytes = 0;     // Staging ring of a discrete device, for host and disk
  double activations_disk_share = 0;
  double activations_host_share = 0;  // Discrete devices only
  int64_t sweep_tokens_max = 0;       // Most tokens of all sequences in a sweep
  int64_t micro_batch_tokens = 1024;  // They close a micro-batch; one prompt may exceed
  int64_t micro_batch_sequences = 0;  // They close it, too; 0: no limit
  int64_t draft_rows_max = 0;         // Most rows of a sweep in which decode steps have drafts
  bool overlap = true;                // False: transfers and compute take turns
  bool prefault_memory = false;       // Prefaults buffers and KV cache when opened
  // On a discrete device with 4-bit weights: expands a layer's weights once for all parts of a
  // large block.
  bool expand_layer = false;
  // On a discrete device: in decode steps the CPU attends to the share of the cache that lives in
  // host memory.
  bool host_attention = false;
  Device* host = nullptr;  // The CPU, for host_attention. Outlives the engine.
  // The ranks that share every layer, where the weights are one rank's; then all ranks run the same
  // sweeps of the same layers with the same limits, and a sweep that fails on one fails on all, as
  // do later ones. The first rank embeds, or takes rows in, and alone has logits or rows to pass
  // on. Null: the weights are whole. Outlives the engine.
  RankGroup* ranks = nullptr;
  std::shared_ptr<SweepLog> log;  // Null: no log
  Trace* trace = nullptr;         // Null: none. Outlives the engine.
  // InputObserver (decoder_layer.h) of each layer. On a CPU alone. May be empty.
  std::function<void(int64_t layer, WeightRole weight, const ConstMatrixView& in)> observe;
};

// Resources of an engine with a disk tier: transfers, which must outlive it, and scratch files
// large enough for the data they are named after.
struct EngineScratch {
  TransferQueue* transfers = nullptr;
  File kv, activations;
};

// Bytes that an Engine takes in addition to weights, KV cache and its staging.
struct EngineBytes {
  uint64_t buffers = 0;         // Working memory
  uint64_t logits = 0;          // Copies in host memory, for a discrete device
  uint64_t rotary = 0;          // A copy in host memory, for a discrete device
  uint64_t host_attention = 0;  // Host memory
  ActivationBytes activations;  // The residual stream
  // Totals by memory, for a discrete device; otherwise all of it is host memory.
  uint64_t device() const { return buffers + activations.memory + activations.device_ring; }
  uint64_t host() const {
    return logits + rotary + host_attention + activations.host + activations.staging;
  }
};
EngineBytes engine_bytes(const DeviceTraits& device, const ModelShape& shape, Format weights,
                         const EngineOptions& options);

// Input and output of an engine that runs a range of layers: rows of the residual stream, float32
// in host memory, one for each token of the sweep in its order.
struct StageRows {
  std::span<const float> in;   // Replaces the embeddings unless the first layer is in range
  std::span<float> out;        // Replaces the logits unless the last layer is in range
  RankPeers* peers = nullptr;  // Of a rank of several (EngineOptions::ranks), the first of which
                               // alone has rows
};

class Engine {
 public:
  // Allocates all memory it will ever use. kCapacity when that does not fit. Device and weights
  // must outlive the engine.
  static Result<std::unique_ptr<Engine>> open(Device& device, WeightStore& weights,
                                              const EngineOptions& options,
                                              EngineScratch scratch = {});
  ~Engine();

  const ModelShape& shape() const { return weights_.shape(); }
  const EngineOptions& options() const { return options_; }
  const KvCache& kv() const { return *kv_; }
  KvCache& kv() { return *kv_; }

  // Reserves a cache for `rows` positions, until release(). kCapacity: not enough free bytes now.
  // `rows_now`, `beginning`, `vacant`: as in KvCache::reserve().
  Result<std::unique_ptr<KvSequence>> reserve(int64_t rows, const KvBudget& budget = {},
                                              const KvChunks& chunks = {}, int64_t rows_now = 0,
                                              std::span<const KvPages* const> beginning = {},
                                              const KvVacant& vacant = {}) {
    return kv_->reserve(rows, budget, chunks, rows_now, beginning, vacant);
  }
  void release(std::unique_ptr<KvSequence> sequence);

  // Blocks for as many positions; false: no room now. Between sweeps.
  bool grow(KvSequence& sequence, int64_t positions) { return kv_->grow(sequence, positions); }

  // Moves the cache of a sequence that has `positions` positions to the region for sequences set
  // aside, blocks that it shares included, or back to where there is room, behind the blocks of
  // `beginning`, if any. Blocks. An error leaves it where it is; kCapacity: there is not enough
  // room. Between sweeps.
  Status set_aside(std::unique_ptr<KvSequence>* sequence, int64_t positions);
  Status bring_back(std::unique_ptr<KvSequence>* sequence, const KvBudget& budget,
                    const KvChunks& chunks, int64_t positions,
                    std::span<const KvPages* const> beginning = {}, const KvVacant& vacant = {});

  // Copies a sequence's cache of one layer, after `positions` positions, from the tier it lives on.
  Status read_kv(KvSequence& sequence, int64_t layer, int64_t positions,
                 std::vector<std::byte>* state, std::vector<std::byte>* rows);

  // Runs one sweep and passes its logits to `sink`. An error concerns the whole sweep: no item's
  // cache may be used any more; later sweeps may succeed. REQUIRES: total tokens <=
  // sweep_tokens_max; token ids below the vocabulary; position + tokens <= positions; `rows` has
  // exactly the inputs and outputs that the range of layers needs.
  Status run(std::span<const SweepItem> items, LogitsSink& sink, StageRows rows = {});

  // What the last sweep did and waited for. REQUIRES: it succeeded.
  const LoggedSweep& last_sweep() const { return account_.sweep(); }

  // What has gone over each link so far.
  LinkTable links() const;

 private:
  Engine(Device& device, WeightStore& weights, const EngineOptions& options);
  Status allocate(EngineScratch scratch);
  Status allocate_rings();
  void plan_micro_batches(std::span<const SweepItem> items);
  Status sweep(std::span<const SweepItem> items, LogitsSink& sink, const StageRows& rows);
  Status embed();
  Status take_in(std::span<const float> rows);
  Status take_shared();
  Status share(const MatrixView& hidden);
  Status hand_on(std::span<float> rows);
  Result<const LayerWeights*> acquire_head();
  void embed_rows(const LayerWeights& weights, std::span<const int32_t> tokens,
                  std::span<const int32_t> positions, const MatrixView& hidden);
  Status run_layers(std::span<const SweepItem> items);
  Status run_layer(std::span<const SweepItem> items, int64_t layer, const LayerWeights& weights,
                   size_t index);
  InputObserver observer_of(int64_t layer) const;
  Status finish_layer(std::span<const SweepItem> items, const LayerWeights& weights);
  void find_wanted(std::span<const SweepItem> items, const MicroBatch& batch);
  Status run_head(std::span<const SweepItem> items, LogitsSink& sink, RankPeers* peers);
  Status follow_end(RankPeers* peers);
  Status meet(size_t items, RankPeers& peers);
  const Status& failure(size_t item) const;
  Status move_kv(std::unique_ptr<KvSequence>* sequence, std::unique_ptr<KvSequence> place,
                 int64_t positions);
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
  std::optional<SpillStager> kv_stager_, aside_stager_;
  std::optional<KvFeed> kv_feed_;
  std::optional<KvMover> kv_mover_;
  std::unique_ptr<HostAttention> host_attention_;  // Null: the device attends to everything
  std::unique_ptr<ActivationStore> activations_;
  Buffer memory_;
  EngineBuffers buffers_;
  std::optional<ExpandedLayer> expanded_;
  std::optional<RoundedBiases> rounded_;
  std::optional<RotaryTable> rotary_;
  Buffer kv_ring_memory_;
  std::optional<DeviceRing> kv_ring_;
  std::optional<Head> head_;

  SweepAccount account_;

  // State of the current sweep.
  std::vector<int32_t> tokens_, positions_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<int64_t> first_rows_;  // Of each micro-batch, in the sweep
  ItemFailures others_failures_;     // On the other ranks
  // A micro-batch that has begun a layer and must finish it before the next but one begins.
  struct Begun {
    MatrixView hidden;
    const LayerBuffers* buffers;
    int64_t layer;
    size_t index;  // Into micro_batches_
    bool on_host;  // It waits for the CPU's attention.
  };
  std::optional<Begun> begun_;
  std::vector<int64_t> batch_rows_;
  std::vector<WantedRow> batch_wanted_;  // Rows of one micro-batch
  std::vector<int32_t> kept_rows_;       // Its rows that are needed after the last attention
};

}  // namespace spillway
