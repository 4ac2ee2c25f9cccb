// The definition of every op of kernels/ops.h: plain loops in double precision, no layout, no
// threads. Each device's body must agree with it (tests/kernels).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/model_shape.h"

namespace spillway::scalar {

using Matrix = std::vector<float>;  // Row-major

double activate(Activation activation, double x);

// Rows of inputs, or of weights, times the Hadamard matrices of kernels/input_hadamard.h: the sums
// are taken in float32 in the order that it gives, so bits can be compared.
Matrix hadamard(const Matrix& rows, int64_t columns, bool inputs);

// act(in [t, k] * w [n, k]^T + bias [n] or empty) + before [t, n] or empty.
Matrix linear(const Matrix& in, const Matrix& w, const Matrix& bias, const Matrix& before,
              Activation activation, int64_t t, int64_t n, int64_t k);

Matrix normalize(NormKind kind, float epsilon, const Matrix& in, const Matrix& weight,
                 const Matrix& bias, int64_t rows, int64_t columns);

// act(gate) * up of [rows, 2 columns], gate in the first half.
Matrix gate(Activation activation, const Matrix& in, int64_t rows, int64_t columns);

// One head [size]: RMSNorm with `weight` (empty: none), then its first `angles` pairs rotated, of
// neighbours or of the halves of what is rotated, then each `hadamard` numbers (0: none) multiplied
// by that matrix over its root.
Matrix rotate_head(const Matrix& head, const Matrix& weight, double epsilon,
                   const std::vector<double>& angles, bool interleaved, size_t hadamard = 0);

// How a query attends: to the last `window` rows (0: to all), its scores times `scale` (0: 1 /
// sqrt(size)).
struct Attention {
  int64_t window = 0;
  double scale = 0;
};

// One query over `rows` keys and values, all [rows, size] at stride size. Returns [size], and the
// softmax weights [rows] where asked for.
Matrix attend(const float* q, const Matrix& keys, const Matrix& values, int64_t rows, int64_t size,
              std::vector<double>* softmax = nullptr, const Attention& how = {});

// A row in 8 bits with one scale (Format::kQ8): max |x| / 127, and x / scale to the nearest
// integer, an even one in the middle. The scale is NaN where a number is NaN or infinite.
struct Q8Row {
  float scale = 0;
  std::vector<int> codes;
};
Q8Row q8_row(const Matrix& row);

}  // namespace spillway::scalar
