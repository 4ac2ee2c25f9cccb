// Matrix products by oneDNN, with weights in its blocked layout (MatrixLayout::kPanels64). For
// comparison: our own kernels are faster (cpu/gemm_tiles.h, cpu/gemm_bf16.h), or as fast.
//
// oneDNN may choose the instructions and the order of a sum by the number of rows, outputs and
// threads, and a row's bits must not depend on the rest of its batch. So every product here has one
// shape for a number of inputs, kOneDnnRows rows times 64 outputs on one thread, and larger ones
// are made of these.
#pragma once

#include <memory>

#include "kernels/base/format.h"

namespace spillway::cpu {

constexpr int64_t kOneDnnRows = 32;

class OneDnn {
 public:
  OneDnn();
  ~OneDnn();

  // True when oneDNN has an optimised kernel for weights of this format on this CPU.
  bool supports(Format weights) const;

  // Kernel for weights and activations in `format`, compiled at the first use and kept. Called by
  // one thread at a time. `columns` is the padded number of inputs (padded_columns()).
  struct Kernel;
  const Kernel& kernel(Format format, int64_t columns);

  // c[kOneDnnRows, 64] = a[kOneDnnRows, columns], dense, times 64 outputs, a panel of kPanels64.
  // Any number of threads may call it at once, each with scratch memory of its own.
  void multiply(const Kernel& kernel, const std::byte* a, const std::byte* panel,
                std::byte* scratch, float* c) const;
  static size_t scratch_bytes(const Kernel& kernel);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cpu
