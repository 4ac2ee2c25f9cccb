// Loops of multiply-adds in registers, over as many independent sums as its instruction needs: the
// peak rate of an instruction of this CPU, whatever a kernel makes of it.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::cpu {

// Types of the factors; sums have 32 bits.
enum class Arithmetic : uint8_t { kF32, kBF16, kInt8 };

struct PeakLoop {
  const char* instruction = "";
  Arithmetic arithmetic = Arithmetic::kF32;
  double operations = 0;  // Per turn; a multiply-add is two
  void (*run)(int64_t turns) = nullptr;
};

// Every loop that this CPU can run. There is one in f32 at least.
std::vector<PeakLoop> peak_loops();

}  // namespace spillway::cpu
