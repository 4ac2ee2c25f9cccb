// Quantisation of weights to 4 bits so that their groups are integers: products with 8-bit
// activations then need no arithmetic in float for each group (cpu/gemm_int8.h).
//
// A stretch is kStretch inputs of an output's row, from a multiple of kStretch on; at the end of a
// row it is shorter. In a stretch of integer groups there is a power of two, its unit, so that each
// group's scale is s * unit and its minimum z * unit with integers s and z, and every code n of 0
// to 15 gives a byte:
//
//   -128 <= n * s + z <= 127
//
// s and z have so few bits that float16 holds scale and minimum exactly: the format of the numbers
// (base/quantized.h) is what it was, and every kernel takes them as before. (Scales that are
// integers of 8 bits over one of float are QServe's progressive groups, arXiv 2405.04532, section
// 4.2; there the outer scale is any number.)
//
// Among a few candidates for s and z the group takes those with the smallest sum of squared errors.
// This gains more than the integers lose: for normal, Laplace and Student-t numbers the error is 3
// to 5 % below that of scales that span the group's range (tests/kernels/integer_groups_test.cc).
//
// Pure functions, any thread; the result does not depend on the instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/format.h"
#include "kernels/base/quantized.h"

namespace spillway {

constexpr int64_t kStretch = 256;
static_assert(kStretch % kGroupMax == 0);

// Quantises a row of weights: a code for each of `values`, and a scale and a minimum for each group
// of the format. Groups of 4-bit formats are integers, unless a stretch reaches beyond +-32512 (127
// of the largest unit that float16 leaves room for); all others are quantize_group()'s. A group
// with a NaN or an infinity in it is NaN, as there. REQUIRES: is_grouped(format).
void quantize_weights(Format format, std::span<const float> values, uint8_t* codes,
                      GroupScale* scales);

}  // namespace spillway
