// Linear layers on oneDNN, with weights in its blocked layout (MatrixLayout::kPanels64). Used on
// machines with AVX-512, where oneDNN reaches the hardware's peak; elsewhere it has no fast bf16.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace spillway::cpu {

class OneDnn {
 public:
  explicit OneDnn(int threads);
  ~OneDnn();

  // True when oneDNN has an optimised kernel for weights of this format on this CPU.
  bool supports(DType weights) const;

  // LinearArgs with layout kPanels64 and the input in the weights' format. Compiles a kernel at the
  // first use of a shape and keeps it; long inputs are cut into a few fixed heights to bound them.
  void linear(const LinearArgs& args);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cpu
