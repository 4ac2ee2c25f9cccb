// CudaContext: state that the CUDA bodies of the ops share: their stream, cuBLAS, scratch memory,
// and uploads of small arrays (rows to gather, attention items). Owned by a CudaStream; its thread.
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

// Clears the runtime's last error. The runtime keeps a call's error, "not ready" too, until it is
// asked for: check_launch() would blame the next kernel for it. Call this after handling such an
// error.
void forget_last_error();

// kCapacity for memory, kDeviceLost for everything else. Clears the last error.
Status status_of(cudaError_t error, const char* what);

// Whether the event has happened: cudaSuccess, cudaErrorNotReady (cleared), or an error.
cudaError_t query(cudaEvent_t event);

// Makes `index` the calling thread's device: the runtime keeps one per host thread, device 0 at
// first. Call it before any other CUDA call; free of cost when the device is current. REQUIRES:
// nothing else in the process calls cudaSetDevice().
cudaError_t use_device(int index);

class CudaContext {
 public:
  // Opens a context with a stream on the device, which becomes the calling thread's device. Its
  // device memory is counted in `memory`, which must outlive it. `native_bf16`: the device has
  // products of bf16 (Device::native_bf16()).
  static Result<std::unique_ptr<CudaContext>> open(int device, bool native_bf16,
                                                   DeviceMemory& memory);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Makes the context's device the calling thread's: before any call of CUDA.
  void bind() { check(use_device(device_), "choosing the device"); }

  // Calls bind(); false: there was an error, and no more work is accepted. Every op calls this
  // first.
  bool ready() {
    bind();
    return status_.ok();
  }

  cudaStream_t stream() const { return stream_; }
  bool native_bf16() const { return native_bf16_; }
  // The cuBLAS handle of this stream, made at the first use, since streams that only copy need
  // none. Null: it could not be made, and status() has the reason.
  cublasHandle_t blas();

  // Plans of the matrix products that cuBLASLt queues on this stream.
  BlasPlans& plans() { return plans_; }

  // Records the spans of work queued from now on in the trace, which must outlive the context.
  void trace_to(Trace& trace, std::string_view label) { trace_.emplace(trace, label, stream_); }
  CudaTrace* trace() { return trace_ ? &*trace_ : nullptr; }  // Null: not traced

  // Uploads `values` to device memory, where work queued later may read them until kUploadBytesMax
  // more bytes have been uploaded. Blocks only when the device is that far behind. REQUIRES: at
  // most kUploadBytesMax; larger arrays are uploaded in parts of, say, kUploadCount, with a launch
  // for each.
  static constexpr size_t kUploadBytesMax = size_t{1} << 20;
  template <class T>
  static constexpr size_t kUploadCount = kUploadBytesMax / 4 / sizeof(T);
  template <class T>
  const T* upload(std::span<const T> values) {
    return reinterpret_cast<const T*>(upload_bytes(std::as_bytes(values)));
  }

  // Device memory for one op, overwritten by the next; grows to the largest request, in the
  // stream's order, and stays. Null: out of memory, as status() reports; the previous scratch is
  // freed, too.
  std::byte* scratch(size_t bytes);
  // The same beside scratch(), for inputs that an op makes of its own for other code that uses
  // that.
  std::byte* input_scratch(size_t bytes);

  // Records the first error, of an awaited event, a call or a kernel: from now on ops and copies
  // are skipped, until recover(), or for good if the device is lost.
  void fail(const Status& status);
  void check(cudaError_t error, const char* what);
  // kInfeasible: cuBLAS does not support the product; only that work fails.
  void check_blas(cublasStatus_t status, const char* what);
  void check_launch(const char* what) { check(cudaGetLastError(), what); }
  const Status& status() const { return status_; }
  bool lost() const { return status_.code() == Code::kDeviceLost; }

  // Accepts work again after an error that has been reported. REQUIRES: !lost().
  void recover();

 private:
  CudaContext(int device, bool native_bf16, DeviceMemory& memory)
      : device_(device), native_bf16_(native_bf16), memory_(memory) {}
  void allocate_uploads();
  std::byte* grown(DeviceMemory::Ordered* scratch, size_t bytes);
  const std::byte* upload_bytes(std::span<const std::byte> bytes);

  const int device_;
  const bool native_bf16_;
  DeviceMemory& memory_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  BlasPlans plans_;
  // Upload ring in two halves, allocated if pinned_ is not null: a half is written again when the
  // event after its last use has happened.
  std::byte* pinned_ = nullptr;
  std::byte* uploaded_ = nullptr;
  cudaEvent_t used_[2] = {nullptr, nullptr};
  size_t half_ = 0, offset_ = 0;
  DeviceMemory::Ordered scratch_, input_scratch_;
  Status status_;
  std::optional<CudaTrace> trace_;
};

// Begin and end the span of an op or a copy in the trace of a traced device.
void begin_span(CudaContext& context, const char* op, const char* value_name, int64_t value);
void end_span(CudaContext& context);

}  // namespace spillway::cuda
