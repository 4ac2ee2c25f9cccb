#include "kernels/cuda/blas_plans.h"

namespace spillway::cuda {

namespace {

// Most plans that are kept: ragged sequences give ever new numbers of tokens.
constexpr size_t kPlansMax = 4096;
// The workspace that cuBLAS takes for itself on Hopper.
constexpr size_t kWorkspaceMax = size_t{32} << 20;

template <class Value>
bool set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name, const Value& value) {
  return cublasLtMatmulDescSetAttribute(product, name, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

// Constraints on the choice of an algorithm.
class Preference {
 public:
  Preference() { good_ = cublasLtMatmulPreferenceCreate(&value_) == CUBLAS_STATUS_SUCCESS; }
  ~Preference() {
    if (value_ != nullptr) cublasLtMatmulPreferenceDestroy(value_);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t name, const Value& value) {
    good_ = good_ && cublasLtMatmulPreferenceSetAttribute(value_, name, &value, sizeof(value)) ==
                         CUBLAS_STATUS_SUCCESS;
  }
  bool good() const { return good_; }
  cublasLtMatmulPreference_t value() const { return value_; }

 private:
  cublasLtMatmulPreference_t value_ = nullptr;
  bool good_ = false;
};

bool make_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows, int64_t columns,
                 int64_t stride) {
  return cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                    static_cast<uint64_t>(columns),
                                    stride) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace

uint32_t alignment_of(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

BlasPlan::~BlasPlan() {
  if (product != nullptr) cublasLtMatmulDescDestroy(product);
  for (cublasLtMatrixLayout_t layout : {weight, in, out}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
}

BlasPlans::~BlasPlans() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

BlasPlan* BlasPlans::find(const BlasShape& shape) {
  if (handle_ == nullptr && cublasLtCreate(&handle_) != CUBLAS_STATUS_SUCCESS) return nullptr;
  auto found = plans_.find(shape);
  if (found == plans_.end()) {
    if (plans_.size() == kPlansMax) plans_.clear();  // Queued calls do not need them.
    found = plans_.emplace(shape, std::make_unique<BlasPlan>()).first;
    make(shape, found->second.get());
  }
  return found->second->known ? found->second.get() : nullptr;
}

// cuBLAS is column-major: to it the weights are [columns, rows], to be transposed, the input is
// [columns, tokens] and the output [rows, tokens]; its bias is one number per row of the output.
void BlasPlans::make(const BlasShape& shape, BlasPlan* plan) {
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceMax);
  // Partial sums stay float32 until the sum is complete, whatever the output's format.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.in_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  // The heuristic looks only at the address of the bias, for its alignment.
  const auto* bias = reinterpret_cast<const void*>(uintptr_t{shape.bias_alignment});
  const bool described =
      preference.good() &&
      cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
          CUBLAS_STATUS_SUCCESS &&
      set(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, transposed) &&
      set(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue) &&
      set(plan->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, shape.out_type) &&
      set(plan->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias) &&
      make_layout(&plan->weight, shape.in_type, shape.columns, shape.rows, shape.columns) &&
      make_layout(&plan->in, shape.in_type, shape.columns, shape.tokens, shape.in_stride) &&
      make_layout(&plan->out, shape.out_type, shape.rows, shape.tokens, shape.out_stride);
  if (!described) return;
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t asked =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->product, plan->weight, plan->in, plan->out,
                                     plan->out, preference.value(), 1, &best, &count);
  plan->known = asked == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan->algorithm = best.algo;
  plan->workspace = plan->known ? best.workspaceSize : 0;
}

cublasStatus_t BlasPlans::run(BlasPlan& plan, const BlasCall& call, cudaStream_t stream) {
  const float keep = call.accumulate ? 1 : 0;
  if (!set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return cublasLtMatmul(handle_, plan.product, &call.scale, call.weight, plan.weight, call.in,
                        plan.in, &keep, call.out, plan.out, call.out, plan.out, &plan.algorithm,
                        call.workspace, plan.workspace, stream);
}

}  // namespace spillway::cuda
