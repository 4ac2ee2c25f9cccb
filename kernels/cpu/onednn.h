// Linear layers on oneDNN, with weights in its blocked layout (MatrixLayout::kPanels64). Chosen for
// bf16 on Intel's CPUs with matrix units; there oneDNN reaches the hardware's peak.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace spillway::cpu {

class OneDnn {
 public:
  // Whether this CPU has units for products of small bf16 matrices (AMX), which beat everything
  // else here. oneDNN without them is slower than our own kernels, or no faster (cpu/gemm_bf16.h).
  static bool has_matrix_units();

  // `float32`: for weights in f32, too, where our own kernels would do.
  OneDnn(int threads, bool float32);
  ~OneDnn();

  // True when oneDNN has an optimised kernel for weights of this format on this CPU, and is to be
  // used for it.
  bool supports(Format weights) const;

  // LinearArgs with layout kPanels64 and the input in the weights' format. Compiles a kernel at the
  // first use of a shape and keeps it; long inputs are cut into a few fixed heights to bound them.
  void linear(const LinearArgs& args);

 private:
  void multiply(const LinearArgs& args, const WeightSlab& slab, int64_t first_output, int64_t row,
                int64_t rows);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cpu
