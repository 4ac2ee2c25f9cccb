// Runs sweeps: one pass of a block of sequences over all layers, layer by layer and, inside a
// layer, micro-batch by micro-batch (DESIGN section 4). Knows tokens and caches; what to run next,
// sampling and requests are the scheduler's.
//
// Thread rule: one thread, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/decoder_layer.h"
#include "kernels/device.h"
#include "offload/kv_cache.h"
#include "offload/weight_store.h"
#include "policy/bound.h"

namespace spillway {

class SweepLog;

struct EngineOptions {
  DType kv_dtype = DType::kF32;  // kF32, kBF16 or kF16
  uint64_t kv_bytes = 0;
  int64_t sweep_tokens_max = 0;  // Tokens of one sweep, all sequences together.
  int64_t micro_batch_tokens =
      1024;  // A micro-batch is closed at this many (one prompt may exceed).
  int64_t micro_batch_sequences = 0;  // ... or at this many sequences; 0: no limit.
  std::shared_ptr<SweepLog> log;      // Null: nobody measures.
};

// Bytes of device memory that an Engine takes besides weights and KV cache.
uint64_t engine_buffer_bytes(const ModelShape& shape, DType activation,
                             const EngineOptions& options);

// One sequence's part of a sweep: a whole prompt at position 0, or one token.
struct SweepItem {
  std::span<const int32_t> tokens;
  int64_t position = 0;
  const KvReservation* kv = nullptr;
  bool all_logits = false;  // Of every token, else of the last one
  bool no_logits = false;
};

// Takes the logits of a sweep, in order of items and tokens, on the engine thread.
class LogitsSink {
 public:
  virtual ~LogitsSink() = default;
  // `item` indexes the sweep, `token` the item's tokens. The row is the sink's to change until it
  // returns: [vocabulary] f32.
  virtual void on_logits(size_t item, int64_t token, std::span<float> logits) = 0;
};

// What an engine did, sweep by sweep, for whoever measures it. Any thread.
class SweepLog {
 public:
  void add(const SweepWork& work) {
    const std::lock_guard lock(mutex_);
    sweeps_.push_back(work);
  }
  std::vector<SweepWork> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(sweeps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<SweepWork> sweeps_;
};

class Engine {
 public:
  // Takes all memory it will ever use. kCapacity when that does not fit. Device and weights must
  // outlive the engine.
  static Result<std::unique_ptr<Engine>> open(Device& device, WeightStore& weights,
                                              const EngineOptions& options);

  const ModelShape& shape() const { return weights_.shape(); }
  const EngineOptions& options() const { return options_; }
  KvCache& kv() { return *kv_; }

  // Runs one sweep and hands out its logits. An error concerns the whole sweep: no item's cache may
  // be used any more. REQUIRES: total tokens <= sweep_tokens_max; token ids below the vocabulary;
  // position + tokens <= positions.
  Status run(std::span<const SweepItem> items, LogitsSink& sink);

 private:
  struct MicroBatch {
    size_t first_item, items;
    int64_t first_row, rows;
  };

  Engine(Device& device, WeightStore& weights, const EngineOptions& options);
  Status allocate();
  void plan_micro_batches(std::span<const SweepItem> items);
  void embed(std::span<const SweepItem> items, int64_t tokens);
  Status run_layers(std::span<const SweepItem> items);
  void run_head(std::span<const SweepItem> items, LogitsSink& sink);
  void head_rows(std::span<const int32_t> rows);

  Device& device_;
  WeightStore& weights_;
  EngineOptions options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvCache> kv_;
  Buffer memory_;
  MatrixView hidden_;     // [sweep_tokens_max, hidden]
  MatrixView embedded_;   // [sweep_tokens_max, embedding] when that is another width
  MatrixView selected_;   // [kHeadRows, hidden]
  MatrixView normed_;     // [kHeadRows, hidden], activation dtype
  MatrixView projected_;  // [kHeadRows, embedding], activation dtype
  MatrixView logits_;     // [kHeadRows, vocabulary]
  LayerBuffers buffers_;
  std::vector<int32_t> tokens_, positions_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<AttentionItem> attention_;
};

}  // namespace spillway
