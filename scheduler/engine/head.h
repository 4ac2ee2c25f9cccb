// The end of a sweep: computes the requested rows' logits, kHeadRows at a time, and samples from
// them. On a discrete device the host waits once for many such parts: sampled indices are small,
// and only whole rows take host memory.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "kernels/rank_group.h"
#include "kernels/sampling/sample.h"
#include "offload/weight_views.h"
#include "scheduler/engine/engine_buffers.h"
#include "scheduler/engine/rank_peers.h"

namespace spillway {

// Receives the logits of a sweep, in order of items and tokens, on the engine thread.
class LogitsSink {
 public:
  virtual ~LogitsSink() = default;
  // `item` indexes the sweep, `token` the item's tokens. The sink may change the row, [vocabulary]
  // f32, until it returns.
  virtual void on_logits(size_t item, int64_t token, std::span<float> logits) = 0;

  // Called in place of on_logits() for an item with a sample rule, where the device samples: the
  // sampled index. A row without one is still passed whole to on_logits().
  virtual void on_sampled(size_t item, int64_t token, int32_t index);

  // The item's cache could not be read from disk or written to it: the item has no logits in this
  // sweep and must not run again. Other items are unaffected.
  virtual void on_failure(size_t item, const Status& status) = 0;
};

// A row whose logits are requested.
struct WantedRow {
  size_t item;
  int64_t token;
  int32_t batch_row;  // Row in its micro-batch
  int32_t row;        // Likewise after the last layer, which may move it
  SampleRule sample;
};

class Head {
 public:
  // Bytes of host memory needed with a discrete device.
  static uint64_t host_bytes(const ModelShape& shape, int64_t selected_rows);

  // `host`: pinned memory of host_bytes(). `ranks`: those that share the head, or null. The other
  // arguments outlive the head.
  Head(Stream& stream, const ModelShape& shape, const EngineBuffers& buffers, Buffer host,
       RankGroup* ranks);
  ~Head();
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  // Begins the head of a sweep whose earlier work is queued. All arguments outlive finish().
  // `peers`: the ranks that share the head, or null.
  void begin(const LayerWeights& weights, LogitsSink& sink, RankPeers* peers);

  // Copies the wanted rows of a micro-batch's residual stream, which may be freed when this
  // returns. Computes and delivers earlier rows if its buffer is full.
  Status select(const MatrixView& hidden, std::span<const WantedRow> wanted);

  // Delivers all remaining rows.
  Status finish();

  // On a rank other than the first, instead of these: its part of the logits that the first asks
  // for, until it says that there are no more.
  Status follow(const LayerWeights& weights, RankPeers& peers);

 private:
  Status queue();
  Status run_in_place();
  Status hand_out();
  Status compute(size_t first, size_t count);
  Status share_logits(const MatrixView& input);
  MatrixView part(int64_t rank, int64_t rows) const;
  void sample(size_t first, size_t count, int32_t* sampled);
  void copy_to_host(size_t row, size_t to);
  std::span<float> host_row(size_t index) const;
  bool comes_whole(size_t index) const;

  Stream& stream_;
  const ModelShape& shape_;
  const EngineBuffers& buffers_;
  RankGroup* const ranks_;
  Buffer host_;  // kHeadRows rows and the indices; empty where the host reads the device's memory

  // State of a sweep.
  const LayerWeights* weights_ = nullptr;
  LogitsSink* sink_ = nullptr;
  RankPeers* peers_ = nullptr;
  std::vector<WantedRow> wanted_;  // Their rows are in buffers_.selected
  // Number of wanted_ queued and delivered. Parts begin at multiples of kHeadRows.
  size_t queued_ = 0, handed_ = 0;
  size_t whole_ = 0;  // Rows of host_ in use
  std::vector<int32_t> rows_, sampled_;
  std::vector<SampleRule> rules_;
};

}  // namespace spillway
