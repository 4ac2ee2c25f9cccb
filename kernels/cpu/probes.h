// The vendor's matmul, with which the CPU's ceilings are measured (kernels/measure/ceilings.h).
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/dtype.h"

namespace spillway::cpu {

// oneDNN's own matrix product, operands in the layouts it likes best: [rows, inputs] times
// [inputs, outputs] in f32 or bf16, f32 result. Takes the memory it needs.
class LibraryProduct {
 public:
  LibraryProduct(DType dtype, int64_t rows, int64_t outputs, int64_t inputs);
  ~LibraryProduct();
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cpu
