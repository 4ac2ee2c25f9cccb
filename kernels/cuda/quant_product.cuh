// A linear layer of few rows over quantised weights, as its kernels take it: linear_quant.cu, on
// tensor cores linear_quant_mma.cu, and linear_quant_q8.cu.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quant.cuh"

namespace spillway::cuda {

class CudaContext;

// T: the format of the input, and of a narrow output.
template <class T>
struct QuantProduct {
  const T* in;
  int64_t in_stride, rows, columns;
  const std::byte* weights;
  int64_t row_bytes, outputs;
  const float* bias;
  Activation activation;
  float scale;
  bool accumulate, narrow_out;
  void* out;
  int64_t out_stride;
};

template <class T>
__device__ void store(const QuantProduct<T>& p, int64_t row, int64_t output, float sum) {
  sum *= p.scale;
  if (p.bias != nullptr) {
    // In the format of the output, as cuBLASLt has it: few rows and many give the same.
    const float bias = p.bias[output];
    sum += p.narrow_out ? widen(narrow<T>(bias)) : bias;
  }
  const int64_t at = row * p.out_stride + output;
  if (p.narrow_out) {
    static_cast<T*>(p.out)[at] = narrow<T>(activate(p.activation, sum));
  } else {
    float* out = static_cast<float*>(p.out) + at;
    *out = p.accumulate ? *out + sum : activate(p.activation, sum);
  }
}

// The most rows that quant_product_q8() takes.
constexpr int64_t kQ8RowsAtOnce = 16;

// Over weights of kQ8.
template <class T>
void quant_product_q8(CudaContext& context, const QuantProduct<T>& product);

// Where the sums of parts of the columns go: out, where there is one part, else to scratch, of
// which another kernel adds them up.
struct ColumnParts {
  int count;
  float* sums;  // [count][rows][outputs]
};

// Whether quant_product_mma() takes columns with such a stride: whole groups, and rows that can be
// read 16 bytes at a time.
inline bool takes_mma(int64_t columns, int64_t in_stride, int64_t group) {
  return columns % group == 0 && columns % 64 == 0 && in_stride % 8 == 0;
}

// On tensor cores. The product is one of a run of slabs of a matrix of `outputs` rows: a result has
// the same bits for any number of rows, and wherever the slabs lie. Takes scratch.
template <class T>
void quant_product_mma(CudaContext& context, Format format, int64_t outputs,
                       const QuantProduct<T>& product);

}  // namespace spillway::cuda
