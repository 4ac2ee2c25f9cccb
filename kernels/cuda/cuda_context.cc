#include "kernels/cuda/cuda_context.h"

#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_ops.h"

namespace spillway::cuda {

namespace {

constexpr size_t kHalfBytes = CudaContext::kUploadBytesMax;

}  // namespace

void forget_last_error() {
  static_cast<void>(cudaGetLastError());
}

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  forget_last_error();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kCapacity : Code::kDeviceLost;
  return {code, std::string("CUDA, ") + what + ": " + cudaGetErrorString(error)};
}

cudaError_t query(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) forget_last_error();
  return state;
}

cudaError_t use_device(int index) {
  thread_local int current = -1;
  if (index == current) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) current = index;
  return error;
}

Result<std::unique_ptr<CudaContext>> CudaContext::open(int device, bool native_bf16,
                                                       DeviceMemory& memory) {
  SPILLWAY_RETURN_IF_ERROR(status_of(use_device(device), "choosing the device"));
  std::unique_ptr<CudaContext> context(new CudaContext(device, native_bf16, memory));
  SPILLWAY_RETURN_IF_ERROR(status_of(
      cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking), "making a stream"));
  return context;
}

cublasHandle_t CudaContext::blas() {
  if (blas_ != nullptr || !ready()) return blas_;
  check_blas(cublasCreate(&blas_), "starting cuBLAS");
  if (blas_ != nullptr) check_blas(cublasSetStream(blas_, stream_), "starting cuBLAS");
  return blas_;
}

// Resumes where it failed the last time, if it did.
void CudaContext::allocate_uploads() {
  for (cudaEvent_t& event : used_) {
    if (event != nullptr) continue;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  void* memory = nullptr;
  if (status_.ok() && uploaded_ == nullptr) {
    fail(memory_.allocate(&memory, 2 * kHalfBytes, "device memory"));
    uploaded_ = static_cast<std::byte*>(memory);
  }
  if (!status_.ok()) return;
  memory = nullptr;
  check(cudaHostAlloc(&memory, 2 * kHalfBytes, cudaHostAllocDefault), "pinned memory");
  pinned_ = static_cast<std::byte*>(memory);
}

// The stream may still read what is freed here.
CudaContext::~CudaContext() {
  bind();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  trace_.reset();
  if (blas_ != nullptr) cublasDestroy(blas_);
  for (cudaEvent_t event : used_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  memory_.free_of(stream_, scratch_);
  memory_.free_of(stream_, input_scratch_);
  memory_.free(uploaded_, 2 * kHalfBytes);
  cudaFreeHost(pinned_);
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);  // The pool releases the scratch.
  cudaStreamDestroy(stream_);
}

const std::byte* CudaContext::upload_bytes(std::span<const std::byte> bytes) {
  SPILLWAY_CHECK(bytes.size() <= kHalfBytes);
  if (ready() && pinned_ == nullptr) allocate_uploads();
  if (!status_.ok()) return uploaded_;  // No op will read it.
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
  return grown(&scratch_, bytes);
}

std::byte* CudaContext::input_scratch(size_t bytes) {
  return grown(&input_scratch_, bytes);
}

std::byte* CudaContext::grown(DeviceMemory::Ordered* scratch, size_t bytes) {
  if (bytes > scratch->bytes) {
    if (!ready()) return nullptr;
    // Queued work still uses the old scratch; freed first, since the new one may reuse its memory.
    memory_.free_of(stream_, std::exchange(*scratch, {}));
    fail(memory_.allocate_for(stream_, scratch, bytes, "scratch memory"));
  }
  return static_cast<std::byte*>(scratch->at);
}

void CudaContext::check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  // The error of the runtime's call that failed inside cuBLAS, if one did: a device without memory
  // for a handle is "not initialized" to cuBLAS.
  const cudaError_t error = cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation || status == CUBLAS_STATUS_ALLOC_FAILED ||
                      status == CUBLAS_STATUS_NOT_INITIALIZED;
  const bool broken =
      status == CUBLAS_STATUS_EXECUTION_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR;
  // A product that cuBLAS does not support fails only that work: the device can do all the rest. A
  // lost device is reported by the runtime, here or in the next call.
  const Code code = memory                           ? Code::kCapacity
                    : broken && error != cudaSuccess ? Code::kDeviceLost
                                                     : Code::kInfeasible;
  std::string message = std::string("CUDA, ") + what + ": " + cublasGetStatusName(status);
  if (error != cudaSuccess) message += std::string(", ") + cudaGetErrorString(error);
  if (code == Code::kInfeasible) {
    message += "; cuBLAS cannot do this here: choose another --format, or --device cpu";
  }
  fail({code, std::move(message)});
}

void begin_span(CudaContext& context, const char* op, const char* value_name, int64_t value) {
  CudaTrace* trace = context.trace();
  if (trace == nullptr) return;
  context.bind();
  trace->begin(op, value_name, value);
}

void end_span(CudaContext& context) {
  if (CudaTrace* trace = context.trace()) trace->end();
}

void run_op(CudaContext& context, const char* name, int64_t rows, const OpArgs& args) {
  begin_span(context, name, "rows", rows);
  std::visit([&](const auto* op) { run(context, *op); }, args);
  end_span(context);
}

void CudaContext::recover() {
  status_ = {};
}

void CudaContext::fail(const Status& status) {
  const bool worse = !lost() && status.code() == Code::kDeviceLost;
  if (status_.ok() || worse) status_ = status;
}

void CudaContext::check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(status_of(error, what));
}

}  // namespace spillway::cuda
