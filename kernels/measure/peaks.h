// Peak arithmetic rates of this CPU, measured in registers: the reference for a matrix product,
// whatever kernel runs it. A product may use the narrowest numbers that lose nothing of its
// weights' format: bf16 weights bf16, 4-bit ones 8 bits, f32 and f16 f32 (bf16 drops three of f16's
// digits). Rounding activations to 8 bits is a choice of quality, so a run that computes 4-bit
// weights in bf16 is compared with a peak that it does not attempt.
#pragma once

#include <string>

#include "kernels/base/format.h"
#include "kernels/cpu/peak_loops.h"
#include "kernels/device.h"

namespace spillway {

using cpu::Arithmetic;

std::string_view arithmetic_name(Arithmetic arithmetic);  // "f32", "bf16", "int8"

// Arithmetic of matrix products with weights of this format.
Arithmetic product_arithmetic(Format weights);

struct Peak {
  double operations_per_second = 0;  // A multiply-add is two.
  std::string instruction;
};

// The higher of two peaks.
Peak best_of(const Peak& a, const Peak& b);

struct Peaks {
  Peak f32, bf16, int8;
  const Peak& of(Arithmetic arithmetic) const;
  // Of attention over a cache of this format, whose softmax weights have at least 16 bits. A number
  // of f16 is the sum of two of bf16, so that a product takes three of bf16 (cpu/attention_amx.h),
  // or is one of float32. Codes of 8 bits are multiplied by integers of 16, at half the rate of 8
  // (cpu/attention_int16.h).
  Peak of_attention(Format kv) const;
};
Peaks best_of(const Peaks& a, const Peaks& b);

// Measures every instruction that the CPU has on all threads of the device: the best of `runs` runs
// of about `run_seconds`. Wider numbers can hold narrower ones, so int8 is at least bf16, and bf16
// at least f32. Blocks. REQUIRES: the device shares host memory.
struct PeakRuns {
  int runs = 5;
  double run_seconds = 0.02;
};
Peaks measure_peaks(Device& device, const PeakRuns& how = {});

}  // namespace spillway
