// What the CUDA bodies of the ops share: their stream, cuBLAS, scratch memory, and small
// arrays (rows to gather, attention items) on their way to the device. Owned by a CudaStream; its
// thread.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "kernels/cuda/blas_plans.h"
#include "kernels/cuda/cuda_trace.h"
#include "kernels/cuda/device_memory.h"

namespace spillway::cuda {

// The runtime keeps what a call returned, "not ready" too, until somebody asks for its last error:
// check_launch() would blame the next kernel for it. Whoever deals with it says so.
void forget_last_error();

// kCapacity for memory, kDeviceLost for everything else. Forgets it.
Status status_of(cudaError_t error, const char* what);

// Whether the event has happened: cudaSuccess, cudaErrorNotReady, forgotten, or an error.
cudaError_t query(cudaEvent_t event);

// Makes it the calling thread's device: the runtime keeps one per host thread, device 0 at first.
// Whoever calls CUDA does this before. Costs nothing when it is that already. REQUIRES: nobody in
// the process calls cudaSetDevice() but this.
cudaError_t use_device(int index);

class CudaContext {
 public:
  // With a stream on the device, which the calling thread's is from then on. What it takes of the
  // device's memory is counted there, which must outlive it.
  static Result<std::unique_ptr<CudaContext>> open(int device, DeviceMemory& memory);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Makes the context's device the calling thread's: before any call of CUDA.
  void bind() { check(use_device(device_), "choosing the device"); }

  // The same; false: there was an error, and no work is taken any more. Every op asks this first.
  bool ready() {
    bind();
    return status_.ok();
  }

  cudaStream_t stream() const { return stream_; }
  // On this stream; made when it is first asked for, since streams that only copy need none. Null:
  // it could not be, and status() says why.
  cublasHandle_t blas();

  // Of products that cuBLASLt queues on this stream.
  BlasPlans& plans() { return plans_; }

  // From now on the spans of what is queued go to the trace. It must outlive the context.
  void trace_to(Trace& trace, std::string_view label) { trace_.emplace(trace, label, stream_); }
  CudaTrace* trace() { return trace_ ? &*trace_ : nullptr; }  // Null: nobody looks

  // A copy of `values` in device memory, there for work queued later, until kUploadBytesMax more
  // have been uploaded. Blocks only when the device is that far behind. REQUIRES: at most
  // kUploadBytesMax; who may have more uploads it in parts of, say, kUploadCount, with a launch of
  // its own for each.
  static constexpr size_t kUploadBytesMax = size_t{1} << 20;
  template <class T>
  static constexpr size_t kUploadCount = kUploadBytesMax / 4 / sizeof(T);
  template <class T>
  const T* upload(std::span<const T> values) {
    return reinterpret_cast<const T*>(upload_bytes(std::as_bytes(values)));
  }

  // Device memory for one op, overwritten by the next; grows to the largest request, in the
  // stream's order, and stays. Null: there is none, and status() says so; what there was before is
  // gone, too.
  std::byte* scratch(size_t bytes);

  // The first error, of what the stream waits for, of a call or of a kernel: from now on ops and
  // copies are skipped; until recover(), unless the device is lost.
  void fail(const Status& status);
  void check(cudaError_t error, const char* what);
  // kInfeasible: cuBLAS does not have what was asked for, which ends that work and nothing else.
  void check_blas(cublasStatus_t status, const char* what);
  void check_launch(const char* what) { check(cudaGetLastError(), what); }
  const Status& status() const { return status_; }
  bool lost() const { return status_.code() == Code::kDeviceLost; }

  // Takes work again after an error that somebody has heard of. REQUIRES: !lost().
  void recover();

 private:
  CudaContext(int device, DeviceMemory& memory) : device_(device), memory_(memory) {}
  void allocate_uploads();
  const std::byte* upload_bytes(std::span<const std::byte> bytes);

  const int device_;
  DeviceMemory& memory_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  BlasPlans plans_;
  // A ring in two halves, there when pinned_ is: a half is written again when the event behind its
  // last use has happened.
  std::byte* pinned_ = nullptr;
  std::byte* uploaded_ = nullptr;
  cudaEvent_t used_[2] = {nullptr, nullptr};
  size_t half_ = 0, offset_ = 0;
  DeviceMemory::Ordered scratch_;
  Status status_;
  std::optional<CudaTrace> trace_;
};

// Around an op or a copy, for the trace of a traced device.
void begin_span(CudaContext& context, const char* op, const char* value_name, int64_t value);
void end_span(CudaContext& context);

}  // namespace spillway::cuda
