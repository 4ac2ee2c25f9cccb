#include "kernels/cuda/cuda_context.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_ops.h"

namespace spillway::cuda {

namespace {

constexpr size_t kHalfBytes = size_t{1} << 20;

}  // namespace

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kCapacity : Code::kDeviceLost;
  return {code, std::string("CUDA, ") + what + ": " + cudaGetErrorString(error)};
}

cudaError_t query(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return state;
}

Result<std::unique_ptr<CudaContext>> CudaContext::open(DeviceMemory& memory) {
  std::unique_ptr<CudaContext> context(new CudaContext(memory));
  SPILLWAY_RETURN_IF_ERROR(status_of(
      cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking), "making a stream"));
  return context;
}

cublasHandle_t CudaContext::blas() {
  if (blas_ != nullptr) return blas_;
  check_blas(cublasCreate(&blas_), "starting cuBLAS");
  if (blas_ != nullptr) check_blas(cublasSetStream(blas_, stream_), "starting cuBLAS");
  return blas_;
}

void CudaContext::allocate_uploads() {
  for (cudaEvent_t& event : used_) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  void* memory = nullptr;
  note(memory_.allocate(&memory, 2 * kHalfBytes, "device memory"));
  uploaded_ = static_cast<std::byte*>(memory);
  check(cudaHostAlloc(&memory, 2 * kHalfBytes, cudaHostAllocDefault), "pinned memory");
  pinned_ = static_cast<std::byte*>(memory);
}

// The stream may still read what is freed here.
CudaContext::~CudaContext() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  trace_.reset();
  if (blas_ != nullptr) cublasDestroy(blas_);
  for (cudaEvent_t event : used_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  memory_.free(scratch_, scratch_bytes_);
  memory_.free(uploaded_, 2 * kHalfBytes);
  cudaFreeHost(pinned_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

const std::byte* CudaContext::upload_bytes(std::span<const std::byte> bytes) {
  SPILLWAY_CHECK(bytes.size() <= kHalfBytes);
  if (pinned_ == nullptr && status_.ok()) allocate_uploads();
  if (!status_.ok()) return uploaded_;  // Nothing will read it.
  if (offset_ + bytes.size() > kHalfBytes) {
    check(cudaEventRecord(used_[half_], stream_), "recording an event");
    half_ = 1 - half_;
    offset_ = 0;
    check(cudaEventSynchronize(used_[half_]), "waiting for the device");
  }
  const size_t at = half_ * kHalfBytes + offset_;
  std::memcpy(pinned_ + at, bytes.data(), bytes.size());
  check(
      cudaMemcpyAsync(uploaded_ + at, pinned_ + at, bytes.size(), cudaMemcpyHostToDevice, stream_),
      "a copy to the device");
  offset_ += (bytes.size() + 255) / 256 * 256;
  return uploaded_ + at;
}

std::byte* CudaContext::scratch(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  check(cudaStreamSynchronize(stream_), "the device");
  memory_.free(scratch_, scratch_bytes_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  void* memory = nullptr;
  note(memory_.allocate(&memory, bytes, "scratch memory"));
  if (memory == nullptr) return nullptr;
  scratch_ = static_cast<std::byte*>(memory);
  scratch_bytes_ = bytes;
  return scratch_;
}

void CudaContext::check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS || !status_.ok()) return;
  const Code code = status == CUBLAS_STATUS_ALLOC_FAILED ? Code::kCapacity : Code::kDeviceLost;
  status_ = Status(code, std::string("CUDA, ") + what + ": cuBLAS status " +
                             std::to_string(static_cast<int>(status)));
}

void begin_span(CudaContext& context, const char* op, const char* value_name, int64_t value) {
  if (CudaTrace* trace = context.trace()) trace->begin(op, value_name, value);
}

void end_span(CudaContext& context) {
  if (CudaTrace* trace = context.trace()) trace->end();
}

void CudaContext::check(cudaError_t error, const char* what) {
  if (error != cudaSuccess && status_.ok()) status_ = status_of(error, what);
}

}  // namespace spillway::cuda
