// The cosines and sines of the tokens of one sweep, a row for each token in the sweep's order: they
// are computed once on the host, and every layer reads them. Owned by the engine; its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/tensor.h"
#include "scheduler/engine/sweep.h"

namespace spillway {

class RotaryTable {
 public:
  // Bytes of the device's memory, and of the host's beside it on a discrete device; 0 for a model
  // with learned positions.
  static uint64_t bytes(const ModelShape& shape, int64_t sweep_tokens_max);

  // `memory` is the device's; `host` has as many bytes on a discrete device, else none. Stream and
  // shape outlive the table.
  RotaryTable(Stream& stream, const ModelShape& shape, std::byte* memory, Buffer host);

  // Computes the rows of the items' tokens and queues their upload. REQUIRES: the stream's work on
  // the last sweep's rows is done.
  void fill(std::span<const SweepItem> items);

  // Rows [first, first + rows) of the sweep; without columns in a layer that does not rotate.
  ConstMatrixView rows(int64_t layer, int64_t first, int64_t rows) const;

 private:
  Stream& stream_;
  const ModelShape& shape_;
  std::byte* memory_;
  Buffer host_;
  std::vector<float> scratch_;
};

}  // namespace spillway
