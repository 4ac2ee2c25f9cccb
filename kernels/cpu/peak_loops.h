// Loops of multiply-adds that stay in registers, a dozen sums that do not wait for each other: what
// an instruction of this CPU can do at most, whatever a kernel makes of it.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::cpu {

// The numbers that are multiplied; sums have 32 bits.
enum class Arithmetic : uint8_t { kF32, kBF16, kInt8 };

struct PeakLoop {
  const char* instruction = "";
  Arithmetic arithmetic = Arithmetic::kF32;
  double operations = 0;  // Of one turn; a multiply-add is two
  void (*run)(int64_t turns) = nullptr;
};

// Every loop that this CPU can run. There is one in f32 at least.
std::vector<PeakLoop> peak_loops();

}  // namespace spillway::cpu
