// A CUDA device behind kernels/device.h: memory, streams, events.
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/device.h"

namespace spillway {

namespace cuda {

namespace {

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::unique_ptr<CudaContext> context)
      : Stream(nullptr, ""), context_(std::move(context)) {}

  ~CudaStream() override {
    context_->bind();
    cudaStreamSynchronize(context_->stream());
    for (const Point& point : recorded_) cudaEventDestroy(point.event);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    if (!context_->ready()) return;
    begin_span(*context_, "copy", "bytes", static_cast<int64_t>(bytes));
    for (size_t done = 0, piece = 0; done < bytes; done += piece) {
      piece = before_registration_ends(to + done, bytes - done);
      piece = before_registration_ends(from + done, piece);
      context_->check(
          cudaMemcpyAsync(to + done, from + done, piece, cudaMemcpyDefault, context_->stream()),
          "a copy");
    }
    end_span(*context_);
  }

  void wait(Event event) override {
    if (event.stream == nullptr || event.stream == this) return;
    if (event.stream->kind() != DeviceKind::kCuda || event.stream->native() == nullptr) {
      // CPU streams have done their work when the call returns; a stream that could not be made has
      // none.
      if (const Status status = event.wait(); !status.ok()) context_->fail(status);
      return;
    }
    auto& other = static_cast<CudaStream&>(*event.stream);
    if (const Status status = other.outcome(event.point); !status.ok()) context_->fail(status);
    if (cudaEvent_t recorded = other.event_of(event.point)) {
      context_->bind();  // The other stream may be of another device.
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
    const bool skips = !context_->status().ok() && !context_->lost();
    if (skips && skipped_.to != kOpen) skipped_ = {last_, kOpen, context_->status()};
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
    Status status = outcome(point);
    if (!status.ok() && !context_->lost() && skipped_.to == kOpen) {
      skipped_.to = last_;
      context_->recover();
    }
    return status;
  }

  void* native() const override { return context_.get(); }

 private:
  struct Point {
    uint64_t number;
    cudaEvent_t event;
  };

  // Points of work that was skipped because memory ran out, and of all later work until the host
  // was notified; then the stream goes on. (A lost device is lost for every point.)
  struct Skipped {
    uint64_t from = 1, to = 0;
    Status why;
  };
  static constexpr uint64_t kOpen = UINT64_MAX;  // `to` until then

  // Outcome of the work before the point, as far as it is known.
  Status outcome(uint64_t point) const {
    if (context_->lost()) return context_->status();
    return skipped_.from <= point && point <= skipped_.to ? skipped_.why : Status();
  }

  // The first event at or after the point; null: it has been reached.
  cudaEvent_t event_of(uint64_t point) {
    retire();
    if (point <= done_ || recorded_.empty()) return nullptr;
    // Numbers are consecutive.
    return recorded_[point - recorded_.front().number].event;
  }

  // Recycles the events that have happened, in order. After an error every point counts as reached.
  // Makes the stream's device the calling thread's.
  void retire() {
    context_->bind();
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
  Skipped skipped_;
};

// A stream that could not be made: it reports the reason.
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
      : index_(index),
        name_(properties.name),
        native_bf16_(properties.major >= 8),
        memory_(index) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string_view name() const override { return name_; }

  // Makes the CUDA context if there is none yet, and so reports why it cannot be made.
  Status ask_memory(size_t* free, size_t* total) const {
    SPILLWAY_RETURN_IF_ERROR(status_of(use_device(index_), "choosing the device"));
    return status_of(cudaMemGetInfo(free, total), "making a context");
  }

  MemoryInfo memory() const override {
    size_t free = 0, total = 0;
    if (!ask_memory(&free, &total).ok()) return {};
    return {total, free, memory_.taken(), memory_.peak()};
  }

  Result<Buffer> allocate(Memory memory, size_t bytes) override {
    if (bytes == 0) return Buffer();
    SPILLWAY_RETURN_IF_ERROR(status_of(use_device(index_), "choosing the device"));
    if (memory == Memory::kPinned) {
      SPILLWAY_ASSIGN_OR_RETURN(PinnedMemory pinned, PinnedMemory::allocate(bytes));
      return Buffer(pinned.data(), bytes, [this, pinned](std::byte*) mutable {
        use_device(index_);  // Else a new thread would open device 0 for it.
        pinned.free();
      });
    }
    void* data = nullptr;
    SPILLWAY_RETURN_IF_ERROR(memory_.allocate(&data, bytes, "device memory"));
    Buffer buffer(static_cast<std::byte*>(data), bytes, [this, bytes](std::byte* at) {
      use_device(index_);
      memory_.free(at, bytes);
    });
    // Cleared on the default stream, for which our streams do not wait: finish before the buffer is
    // used.
    cudaError_t cleared = cudaMemset(data, 0, bytes);
    if (cleared == cudaSuccess) cleared = cudaStreamSynchronize(nullptr);
    SPILLWAY_RETURN_IF_ERROR(status_of(cleared, "clearing memory"));
    return buffer;
  }

  void limit_memory(size_t bytes) override { memory_.limit(bytes); }

  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    Result<std::unique_ptr<CudaContext>> context = CudaContext::open(index_, native_bf16_, memory_);
    if (!context.ok()) return std::make_unique<FailedStream>(context.status());
    if (trace() != nullptr) context.value()->trace_to(*trace(), label);
    return std::make_unique<CudaStream>(std::move(context).value());
  }

  DType activation_dtype(Format weights) const override {
    return gpu_activation_dtype(weights, native_bf16_);
  }
  MatrixLayout matrix_layout(Format) const override { return kCudaMatrixLayout; }
  bool native_bf16() const override { return native_bf16_; }

 private:
  int index_;
  std::string name_;
  bool native_bf16_;  // From compute capability 8.0 on
  DeviceMemory memory_;
};

}  // namespace

}  // namespace cuda

// Version as text: "13.0" for the runtime's 13000.
std::string cuda_version(cudaError_t (*ask)(int*)) {
  int version = 0;
  if (ask(&version) != cudaSuccess || version == 0) return "none";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Our kernels are compiled for nothing older (cuda.cmake): major * 10 + minor.
constexpr int kCapabilityMin = 75;

Result<std::unique_ptr<Device>> open_cuda_device(int index) {
  // Before the first call of CUDA: as many work queues as there can be, so that no stream that
  // waits for an event holds up another. A value set by the user stays.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    std::string reason = std::string("no CUDA device: ") + cudaGetErrorString(error);
    if (error == cudaErrorInsufficientDriver) {
      reason += "; the driver has CUDA " + cuda_version(cudaDriverGetVersion) +
                ", this program needs " + cuda_version(cudaRuntimeGetVersion) +
                ": install a newer driver, or";
    } else {
      reason += ";";
    }
    return not_found(reason + " use --device cpu");
  }
  if (index < 0 || index >= count) {
    return not_found("there is no CUDA device " + std::to_string(index) + ", only " +
                     std::to_string(count));
  }
  cudaDeviceProp properties{};
  SPILLWAY_RETURN_IF_ERROR(
      cuda::status_of(cudaGetDeviceProperties(&properties, index), "asking for the device"));
  if (properties.major * 10 + properties.minor < kCapabilityMin) {
    return not_found("CUDA device " + std::to_string(index) + " (" + properties.name +
                     ") has compute capability " + std::to_string(properties.major) + "." +
                     std::to_string(properties.minor) +
                     "; 7.5 (Turing) or newer is needed: choose another with --gpu, or use "
                     "--device cpu");
  }
  auto device = std::make_unique<cuda::CudaDevice>(index, properties);
  size_t free = 0, total = 0;
  if (const Status status = device->ask_memory(&free, &total); !status.ok()) {
    return Status(status.code(),
                  std::string(status.message()) + " (CUDA device " + std::to_string(index) + ", " +
                      properties.name +
                      "): another program may have it for itself or fill it; end that, choose "
                      "another device with --gpu, or use --device cpu");
  }
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace spillway
