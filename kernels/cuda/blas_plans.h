// Matrix products of cuBLASLt that add the bias, apply the activation and narrow the sums while
// these are still in registers: a plan is found once for each shape and kept. Owned by a
// CudaContext; its thread.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace spillway::cuda {

// out [tokens, rows] = epilogue(in [tokens, columns] weight [rows, columns]^T), rows dense but for
// the strides, counted in elements. Sums in float32; a bias has the format of `out`.
struct BlasShape {
  cudaDataType_t in_type = CUDA_R_32F;  // The weights' type, too
  cudaDataType_t out_type = CUDA_R_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int64_t rows = 0, columns = 0, tokens = 0;
  int64_t in_stride = 0, out_stride = 0;
  // Alignments of the addresses in bytes: powers of two up to 256.
  uint32_t weight_alignment = 256, in_alignment = 256, out_alignment = 256, bias_alignment = 256;
  auto operator<=>(const BlasShape&) const = default;
};

struct BlasCall {
  const std::byte* weight = nullptr;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  const void* bias = nullptr;      // When the epilogue has one
  float scale = 1.0f;              // Of the product
  bool accumulate = false;         // Adds to `out`, before the epilogue
  std::byte* workspace = nullptr;  // plan->workspace bytes
};

struct BlasPlan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, in = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;  // Bytes
  bool known = false;    // cuBLASLt has an algorithm for the shape.

  BlasPlan() = default;
  ~BlasPlan();
  BlasPlan(const BlasPlan&) = delete;
  BlasPlan& operator=(const BlasPlan&) = delete;
};

// The largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* at);

class BlasPlans {
 public:
  BlasPlans() = default;
  ~BlasPlans();
  BlasPlans(const BlasPlans&) = delete;
  BlasPlans& operator=(const BlasPlans&) = delete;

  // Null: cuBLASLt has no algorithm for this shape, or could not be started.
  BlasPlan* find(const BlasShape& shape);

  cublasStatus_t run(BlasPlan& plan, const BlasCall& call, cudaStream_t stream);

 private:
  void make(const BlasShape& shape, BlasPlan* plan);

  cublasLtHandle_t handle_ = nullptr;
  std::map<BlasShape, std::unique_ptr<BlasPlan>> plans_;
};

}  // namespace spillway::cuda
