#include "tests/support/scalar_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/input_hadamard.h"

namespace spillway::scalar {

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

Matrix hadamard(const Matrix& rows, int64_t columns, bool inputs) {
  Matrix out = rows;
  for (size_t row = 0; row < out.size(); row += static_cast<size_t>(columns)) {
    for (int64_t first = 0, block = 0; first < columns; first += block) {
      block = hadamard_block(first, columns);
      float* const x = out.data() + row + first;
      for (int64_t i = 0; i < block; ++i)
        x[i] *= inputs ? input_factor(block) : weight_factor(block);
      for (int64_t step = 1; step < block; step *= 2) {
        for (int64_t i = 0; i < block; ++i) {
          if ((i & step) != 0) continue;
          const float a = x[i], b = x[i + step];
          x[i] = a + b;
          x[i + step] = a - b;
        }
      }
    }
  }
  return out;
}

Matrix linear(const Matrix& in, const Matrix& w, const Matrix& bias, const Matrix& before,
              Activation activation, int64_t t, int64_t n, int64_t k) {
  Matrix out(static_cast<size_t>(t * n));
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(j)];
      for (int64_t c = 0; c < k; ++c) {
        sum += double{in[static_cast<size_t>(i * k + c)]} * w[static_cast<size_t>(j * k + c)];
      }
      const auto index = static_cast<size_t>(i * n + j);
      out[index] = static_cast<float>(activate(activation, sum) +
                                      (before.empty() ? 0.0 : double{before[index]}));
    }
  }
  return out;
}

Matrix normalize(NormKind kind, float epsilon, const Matrix& in, const Matrix& weight,
                 const Matrix& bias, int64_t rows, int64_t columns) {
  Matrix out(in.size());
  for (int64_t i = 0; i < rows; ++i) {
    const float* x = in.data() + i * columns;
    double mean = 0, square = 0;
    if (kind == NormKind::kLayerNorm) {
      for (int64_t c = 0; c < columns; ++c) mean += x[c] / static_cast<double>(columns);
    }
    for (int64_t c = 0; c < columns; ++c) square += (x[c] - mean) * (x[c] - mean);
    const double scale = 1 / std::sqrt(square / static_cast<double>(columns) + double{epsilon});
    for (int64_t c = 0; c < columns; ++c) {
      const auto index = static_cast<size_t>(c);
      double y = (x[c] - mean) * scale;
      if (!weight.empty()) y *= weight[index];
      if (!bias.empty()) y += bias[index];
      out[static_cast<size_t>(i * columns + c)] = static_cast<float>(y);
    }
  }
  return out;
}

Matrix gate(Activation activation, const Matrix& in, int64_t rows, int64_t columns) {
  Matrix out;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) {
      const double gate = in[static_cast<size_t>(2 * row * columns + i)];
      const double up = in[static_cast<size_t>(2 * row * columns + columns + i)];
      out.push_back(static_cast<float>(activate(activation, gate) * up));
    }
  }
  return out;
}

Matrix rotate_head(const Matrix& head, const Matrix& weight, double epsilon,
                   const std::vector<double>& angles, bool interleaved, size_t hadamard) {
  std::vector<double> x(head.begin(), head.end());
  if (!weight.empty()) {
    double square = 0;
    for (const double value : x) square += value * value / static_cast<double>(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] *= weight[i] / std::sqrt(square + epsilon);
  }
  for (size_t i = 0; i < angles.size(); ++i) {
    double& a = x[interleaved ? 2 * i : i];
    double& b = x[interleaved ? 2 * i + 1 : i + angles.size()];
    const double before = a;
    a = before * std::cos(angles[i]) - b * std::sin(angles[i]);
    b = b * std::cos(angles[i]) + before * std::sin(angles[i]);
  }
  if (hadamard == 0) return {x.begin(), x.end()};
  Matrix out;
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = 0;
    for (size_t j = 0; j < hadamard; ++j) {
      const bool odd = std::popcount(i % hadamard & j) % 2 != 0;
      const double from = x[i / hadamard * hadamard + j];
      sum += odd ? -from : from;
    }
    out.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(hadamard))));
  }
  return out;
}

Matrix attend(const float* q, const Matrix& keys, const Matrix& values, int64_t rows, int64_t size,
              std::vector<double>* softmax, const Attention& how) {
  std::vector<double> weights(static_cast<size_t>(rows));
  const int64_t first = how.window > 0 ? std::max<int64_t>(0, rows - how.window) : 0;
  const double scale = how.scale > 0 ? how.scale : 1 / std::sqrt(static_cast<double>(size));
  double most = -INFINITY, total = 0;
  for (int64_t r = first; r < rows; ++r) {
    const double dot =
        std::transform_reduce(q, q + size, keys.begin() + r * size, 0.0, std::plus<>(),
                              [](float a, float b) { return double{a} * b; });
    weights[static_cast<size_t>(r)] = dot * scale;
    most = std::max(most, weights[static_cast<size_t>(r)]);
  }
  for (int64_t r = first; r < rows; ++r) {
    double& w = weights[static_cast<size_t>(r)];
    total += w = std::exp(w - most);
  }
  std::vector<double> sums(static_cast<size_t>(size));
  for (int64_t r = first; r < rows; ++r) {
    const double w = weights[static_cast<size_t>(r)];
    const float* value = values.data() + r * size;
    for (double& sum : sums) sum += w * *value++;
  }
  Matrix out(static_cast<size_t>(size));
  std::transform(sums.begin(), sums.end(), out.begin(),
                 [&](double sum) { return static_cast<float>(sum / total); });
  if (softmax != nullptr) {
    *softmax = weights;
    for (double& w : *softmax) w /= total;
  }
  return out;
}

Q8Row q8_row(const Matrix& row) {
  Q8Row found{0, std::vector<int>(row.size())};
  float most = 0;
  for (const float x : row) {
    if (!std::isfinite(x)) return {NAN, std::move(found.codes)};
    most = std::max(most, std::abs(x));
  }
  found.scale = std::min(most / 127, 0x1.020406p+121f);  // 127 times more is finite.
  if (found.scale == 0) return found;
  for (size_t i = 0; i < row.size(); ++i) {
    const double steps = std::nearbyint(static_cast<double>(row[i] / found.scale));
    found.codes[i] = static_cast<int>(std::clamp(steps, -127.0, 127.0));
  }
  return found;
}

}  // namespace spillway::scalar
