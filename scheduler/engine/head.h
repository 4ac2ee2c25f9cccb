// The end of a sweep: the logits of the rows that somebody asked for, kHeadRows at a time, and what
// is drawn from them. Where the device has memory of its own the host waits once for many such
// parts: drawn indices are small, and only rows that come whole need room of their own.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "kernels/sampling/sample.h"
#include "offload/weight_views.h"
#include "scheduler/engine/engine_buffers.h"

namespace spillway {

// Takes the logits of a sweep, in order of items and tokens, on the engine thread.
class LogitsSink {
 public:
  virtual ~LogitsSink() = default;
  // `item` indexes the sweep, `token` the item's tokens. The row is the sink's to change until it
  // returns: [vocabulary] f32.
  virtual void on_logits(size_t item, int64_t token, std::span<float> logits) = 0;

  // In place of on_logits() for an item with a rule to draw by, where the device draws: the index.
  // A row that has none comes whole, all the same.
  virtual void on_sampled(size_t item, int64_t token, int32_t index);

  // The item's cache could not be brought from disk or sent there: it has no logits in this sweep
  // and must not run again. The others are well.
  virtual void on_failure(size_t item, const Status& status) = 0;
};

// A row whose logits are asked for.
struct WantedRow {
  size_t item;
  int64_t token;
  int32_t batch_row;  // Of its micro-batch
  int32_t row;        // The same after the last layer, which may move it
  SampleRule sample;
};

class Head {
 public:
  // Of host memory, where the device has its own.
  static uint64_t host_bytes(const ModelShape& shape, int64_t selected_rows);

  // `host`: pinned, of host_bytes(). All others outlive the head.
  Head(Stream& stream, const ModelShape& shape, const EngineBuffers& buffers, Buffer host);
  ~Head();
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  // Of a sweep, whose earlier work is queued. Both outlive finish().
  void begin(const LayerWeights& weights, LogitsSink& sink);

  // Takes these rows of a micro-batch's residual stream, which may go when this returns. Hands out
  // what there is no room for.
  Status select(const MatrixView& hidden, std::span<const WantedRow> wanted);

  // Hands out all that is left.
  Status finish();

 private:
  Status queue();
  Status run_in_place();
  Status hand_out();
  void compute(size_t first, size_t count);
  void sample(size_t first, size_t count, int32_t* sampled);
  void bring(size_t row, size_t to);
  std::span<float> host_row(size_t index) const;
  bool comes_whole(size_t index) const;

  Stream& stream_;
  const ModelShape& shape_;
  const EngineBuffers& buffers_;
  Buffer host_;  // kHeadRows rows and the indices; empty where the host reads the device's memory

  // Of a sweep.
  const LayerWeights* weights_ = nullptr;
  LogitsSink* sink_ = nullptr;
  std::vector<WantedRow> wanted_;  // In buffers_.selected
  // Of these: whose logits are queued, and who got them. Parts begin at multiples of kHeadRows.
  size_t queued_ = 0, handed_ = 0;
  size_t whole_ = 0;  // Rows of host_ that are taken
  std::vector<int32_t> rows_, sampled_;
  std::vector<SampleRule> rules_;
};

}  // namespace spillway
