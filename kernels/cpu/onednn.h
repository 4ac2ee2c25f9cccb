// Linear layers on oneDNN, with weights in its blocked layout (MatrixLayout::kPanels64). Chosen for
// bf16 on Intel's CPUs with matrix units; there oneDNN reaches the hardware's peak.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace spillway::cpu {

class OneDnn {
 public:
  // Whether this CPU's bf16 dot products beat its float32 ones: with AMX, and on AMD (oneDNN on two
  // Zen 5 cores: 950 GFLOP/s in bf16, 480 in float32). Intel's vector units run that
  // instruction at half their float32 rate (measured on an Emerald Rapids without AMX: oneDNN 177
  // GFLOP/s in bf16, 325 in float32), so there float32 arithmetic on widened weights is faster.
  static bool multiplies_bf16_faster();

  // `float32`: for weights in f32, too, where our own kernels would do.
  OneDnn(int threads, bool float32);
  ~OneDnn();

  // True when oneDNN has an optimised kernel for weights of this format on this CPU, and is to be
  // used for it.
  bool supports(DType weights) const;

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
