// What of cuBLASLt we use, without a device, as its manual says: in double precision, column by
// column, on the streams of fake_cudart.h. It has no algorithm for what its tensor cores would not
// take either (addresses or rows off their grid), so that callers must be able to do without.
#include <cublasLt.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "tests/support/cuda_emulation.h"
#include "tests/support/fake_cudart.h"

namespace {

// As a handle, it belongs to the device on which it was made.
struct Handle {
  int device = 0;
};
int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

struct Layout {
  cudaDataType type;
  int64_t rows, columns, stride;
};

struct Product {
  cublasOperation_t transposed = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType bias_type = CUDA_R_32F;
  const void* bias = nullptr;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

// Our own types stand behind the opaque ones.
template <class Own, class Opaque>
Own& own(Opaque* opaque) {
  return *reinterpret_cast<Own*>(opaque);
}
template <class Own, class Opaque>
cublasStatus_t create(Opaque** opaque, const Own& value) {
  *opaque = reinterpret_cast<Opaque*>(new Own(value));
  return CUBLAS_STATUS_SUCCESS;
}
template <class Own, class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete &own<Own>(opaque);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Value>
cublasStatus_t take(Value* value, const void* from, size_t bytes) {
  if (bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

double element(cudaDataType type, const void* numbers, int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(numbers)[i];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(numbers)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(numbers)[i]);
}

void store(cudaDataType type, void* numbers, int64_t i, double x) {
  const auto value = static_cast<float>(x);
  if (type == CUDA_R_32F) static_cast<float*>(numbers)[i] = value;
  if (type == CUDA_R_16F) static_cast<__half*>(numbers)[i] = __float2half_rn(value);
  if (type == CUDA_R_16BF) static_cast<__nv_bfloat16*>(numbers)[i] = __float2bfloat16_rn(value);
}

double activated(cublasLtEpilogue_t epilogue, double x) {
  if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) return x > 0 ? x : 0;
  if ((epilogue & CUBLASLT_EPILOGUE_GELU) == 0) return x;
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

constexpr size_t kWorkspace = 4096;
std::atomic<uint64_t> products_run{0};

}  // namespace

uint64_t spillway::fake_cudart::fused_products() {
  return products_run;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return create(handle, Handle{current_device()});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy<Handle>(handle);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  return create(layout,
                Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return create(product, Product{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return destroy<Product>(product);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  auto& product = own<Product>(opaque);
  if (name == CUBLASLT_MATMUL_DESC_TRANSA) return take(&product.transposed, value, bytes);
  if (name == CUBLASLT_MATMUL_DESC_EPILOGUE) return take(&product.epilogue, value, bytes);
  if (name == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) return take(&product.bias_type, value, bytes);
  if (name == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return take(&product.bias, value, bytes);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  auto& preference = own<Preference>(opaque);
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return take(&preference.workspace, value, bytes);
  }
  if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    return take(&preference.reductions, value, bytes);
  }
  const int matrix = name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (matrix < 0 || matrix > 3) return CUBLAS_STATUS_INVALID_VALUE;
  return take(&preference.alignments[matrix], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t weight,
    cublasLtMatrixLayout_t in, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
    cublasLtMatmulPreference_t opaque, int, cublasLtMatmulHeuristicResult_t results[], int* count) {
  const auto& preference = own<Preference>(opaque);
  *count = 0;
  if (spillway::fake_cudart::why_no_product(own<Layout>(weight).type) != CUBLAS_STATUS_SUCCESS) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const uint32_t alignment : preference.alignments) {
    if (alignment < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const cublasLtMatrixLayout_t layout : {weight, in, out}) {
    if (own<Layout>(layout).rows % 4 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Sums must not pass through the output's format.
  if (preference.reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto bias = reinterpret_cast<uintptr_t>(own<Product>(product).bias);
  if (bias % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (preference.workspace < kWorkspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = 1;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].workspaceSize = kWorkspace;
  // What the addresses will be multiples of.
  for (int i = 0; i < 4; ++i) results[0].algo.data[i] = preference.alignments[i];
  results[0].algo.data[4] = bias == 0 ? 256 : bias & (~bias + 1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t described,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (own<Handle>(handle).device != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  const Product product = own<Product>(described);
  const auto weight = own<Layout>(a_layout), in = own<Layout>(b_layout);
  const auto before = own<Layout>(c_layout), out = own<Layout>(d_layout);
  const int64_t inner = weight.rows;
  const bool with_bias = (product.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  const auto fits = [](const Layout& layout) { return layout.stride >= layout.rows; };
  if (product.transposed != CUBLAS_OP_T || weight.type != in.type || before.type != out.type ||
      in.rows != inner || out.rows != weight.columns || out.columns != in.columns ||
      !fits(weight) || !fits(in) || !fits(out) || algorithm == nullptr || workspace == nullptr ||
      workspace_bytes < kWorkspace ||
      (with_bias && (product.bias == nullptr || product.bias_type != out.type))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* const addresses[5] = {a, b, c, d, with_bias ? product.bias : nullptr};
  for (int i = 0; i < 5; ++i) {
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algorithm->data[i] != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  ++products_run;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  spillway::emulation::launch(stream, dim3(1), dim3(1), 0, [=] {
    std::memset(workspace, 0xee, workspace_bytes);
    for (int64_t column = 0; column < out.columns; ++column) {
      for (int64_t row = 0; row < out.rows; ++row) {
        double sum = spillway::fake_cudart::product_sum(inner, out.columns, [&](int64_t i) {
          return element(weight.type, a, row * weight.stride + i) *
                 element(in.type, b, column * in.stride + i);
        });
        sum *= scale;
        if (keep != 0) sum += keep * element(before.type, c, column * before.stride + row);
        if (with_bias) sum += element(product.bias_type, product.bias, row);
        store(out.type, d, column * out.stride + row, activated(product.epilogue, sum));
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
