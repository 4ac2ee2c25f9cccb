// A CUDA device behind kernels/device.h: memory, streams, events.
#include <deque>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/device.h"

namespace spillway {

namespace cuda {

namespace {

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::unique_ptr<CudaContext> context)
      : Stream(nullptr, ""), context_(std::move(context)) {}

  ~CudaStream() override {
    cudaStreamSynchronize(context_->stream());
    for (const Point& point : recorded_) cudaEventDestroy(point.event);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    if (!context_->status().ok()) return;
    begin_span(*context_, "copy", "bytes", static_cast<int64_t>(bytes));
    context_->check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context_->stream()),
                    "a copy");
    end_span(*context_);
  }

  void wait(Event event) override {
    if (event.stream == nullptr || event.stream == this) return;
    if (event.stream->kind() != DeviceKind::kCuda || event.stream->native() == nullptr) {
      // The host's work is in order with its calls; a stream that could not be made has none.
      if (Status status = event.wait(); !status.ok()) poison(status);
      return;
    }
    auto& other = static_cast<CudaStream&>(*event.stream);
    if (!other.context_->status().ok()) poison(other.context_->status());
    if (cudaEvent_t recorded = other.event_of(event.point)) {
      context_->check(cudaStreamWaitEvent(context_->stream(), recorded, 0), "waiting for a stream");
    }
  }

  Event record() override {
    retire();
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      context_->check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    context_->check(cudaEventRecord(event, context_->stream()), "recording an event");
    recorded_.push_back({++last_, event});
    return {this, last_};
  }

  bool reached(uint64_t point) const override {
    const_cast<CudaStream*>(this)->retire();
    return point <= done_;
  }

  Status sync(uint64_t point) override {
    if (cudaEvent_t event = event_of(point)) {
      context_->check(cudaEventSynchronize(event), "the device");
      retire();
    }
    return error_.ok() ? context_->status() : error_;
  }

  void* native() const override { return context_.get(); }

 private:
  struct Point {
    uint64_t number;
    cudaEvent_t event;
  };

  void poison(const Status& status) {
    if (error_.ok()) error_ = status;
  }

  // The first event at or behind the point; null: it has been reached.
  cudaEvent_t event_of(uint64_t point) {
    retire();
    if (point <= done_ || recorded_.empty()) return nullptr;
    // Numbers follow one another.
    return recorded_[point - recorded_.front().number].event;
  }

  // Takes back the events that have happened, in order. After an error every point is reached.
  void retire() {
    while (!recorded_.empty()) {
      const cudaError_t state = query(recorded_.front().event);
      if (state == cudaErrorNotReady) break;
      context_->check(state, "the device");
      done_ = recorded_.front().number;
      free_.push_back(recorded_.front().event);
      recorded_.pop_front();
    }
    if (CudaTrace* trace = context_->trace()) trace->collect();
  }

  std::unique_ptr<CudaContext> context_;
  std::deque<Point> recorded_;
  std::vector<cudaEvent_t> free_;
  uint64_t last_ = 0, done_ = 0;
  Status error_;
};

// A stream that could not be made: it answers with why.
class FailedStream final : public Stream {
 public:
  explicit FailedStream(Status status) : Stream(nullptr, ""), status_(std::move(status)) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  void copy(std::byte*, const std::byte*, size_t) override {}
  void wait(Event) override {}
  Event record() override { return {this, 0}; }
  bool reached(uint64_t) const override { return true; }
  Status sync(uint64_t) override { return status_; }
  void* native() const override { return nullptr; }

 private:
  Status status_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties)
      : index_(index), name_(properties.name), native_bf16_(properties.major >= 8) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string_view name() const override { return name_; }

  MemoryInfo memory() const override {
    size_t free = 0, total = 0;
    if (cudaSetDevice(index_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      return {};
    }
    return {total, free, memory_.taken(), memory_.peak()};
  }

  Result<Buffer> allocate(Memory memory, size_t bytes) override {
    if (bytes == 0) return Buffer();
    SPILLWAY_RETURN_IF_ERROR(status_of(cudaSetDevice(index_), "choosing the device"));
    void* data = nullptr;
    const bool pinned = memory == Memory::kPinned;
    if (pinned) {
      SPILLWAY_RETURN_IF_ERROR(
          status_of(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "pinned memory")
              .at(std::to_string(bytes) + " bytes"));
    } else {
      SPILLWAY_RETURN_IF_ERROR(memory_.allocate(&data, bytes, "device memory"));
    }
    Buffer buffer(static_cast<std::byte*>(data), bytes, [this, pinned, bytes](std::byte* at) {
      pinned ? static_cast<void>(cudaFreeHost(at)) : memory_.free(at, bytes);
    });
    SPILLWAY_RETURN_IF_ERROR(status_of(cudaMemset(data, 0, bytes), "clearing memory"));
    return buffer;
  }

  void limit_memory(size_t bytes) override { memory_.limit(bytes); }

  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    if (const cudaError_t error = cudaSetDevice(index_); error != cudaSuccess) {
      return std::make_unique<FailedStream>(status_of(error, "choosing the device"));
    }
    Result<std::unique_ptr<CudaContext>> context = CudaContext::open(memory_);
    if (!context.ok()) return std::make_unique<FailedStream>(context.status());
    if (trace() != nullptr) context.value()->trace_to(*trace(), label);
    return std::make_unique<CudaStream>(std::move(context).value());
  }

  // float32 weights are for comparisons; 4-bit ones are computed with in bf16, or in f16 where
  // tensor cores have nothing else.
  DType activation_dtype(DType weights) const override {
    if (weights != DType::kQ4) return weights;
    return native_bf16_ ? DType::kBF16 : DType::kF16;
  }
  MatrixLayout matrix_layout(DType) const override { return kCudaMatrixLayout; }
  bool native_bf16() const override { return native_bf16_; }

 private:
  int index_;
  std::string name_;
  bool native_bf16_;  // From compute capability 8.0 on
  DeviceMemory memory_;
};

}  // namespace

}  // namespace cuda

Result<std::unique_ptr<Device>> open_cuda_device(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return not_found(std::string("no CUDA device: ") + cudaGetErrorString(error) +
                     "; use --device cpu");
  }
  if (index < 0 || index >= count) {
    return not_found("there is no CUDA device " + std::to_string(index) + ", only " +
                     std::to_string(count));
  }
  cudaDeviceProp properties{};
  SPILLWAY_RETURN_IF_ERROR(
      cuda::status_of(cudaGetDeviceProperties(&properties, index), "asking for the device"));
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(index, properties));
}

}  // namespace spillway
