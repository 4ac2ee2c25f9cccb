// Device, Stream and Event: the only hardware interface that the rest of the program sees.
// Backends: cpu/cpu_device.cc and cuda/cuda_device.cc; a build without CUDA links no_cuda.cc in
// place of the latter, so no caller has an #ifdef.
//
// Thread rules: a Device may be used from any thread. A Stream and the Events it made belong to one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/base/format.h"
#include "kernels/base/status.h"
#include "kernels/base/trace.h"
#include "kernels/weight_layout.h"

namespace spillway {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// kDevice: memory that kernels compute on; kPinned: host memory that a copy engine can reach.
enum class Memory : uint8_t { kDevice, kPinned };

// Move-only owner of one allocation. The Device must outlive it.
class Buffer {
 public:
  using Free = std::function<void(std::byte*)>;

  Buffer() = default;
  Buffer(std::byte* data, size_t bytes, Free free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) free_(data_);
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_;
};

class Stream;

// A point in the work of a stream: a plain value, no allocation. The stream must outlive it. A
// default Event has already happened.
struct Event {
  Stream* stream = nullptr;
  uint64_t point = 0;

  bool done() const;    // All work before the point has finished, with or without an error.
  Status wait() const;  // Blocks the host. Returns the first error before the point.
};

// An ordered queue of work. No call blocks the host, except sync(). On the CPU the work runs inside
// the call, on the device's threads: every event has happened when record() returns.
class Stream {
 public:
  virtual ~Stream() = default;

  virtual DeviceKind kind() const = 0;

  // Copies `bytes`. Both ranges must stay valid until the work is done.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;

  // Later work starts only after `event`. An error before `event` poisons this stream: later work
  // is skipped and sync() reports that error.
  virtual void wait(Event event) = 0;

  virtual Event record() = 0;
  virtual bool reached(uint64_t point) const = 0;
  virtual Status sync(uint64_t point) = 0;

  // The CudaContext for kernels/cuda, the CpuContext for kernels/cpu. Null: the stream could not be
  // made, and sync() returns the reason.
  virtual void* native() const = 0;

  // Trace that records the span of each op's call; null: none. A stream whose work outlives the
  // call passes null to its base class and records its spans from events.
  Trace* trace() const { return trace_; }
  Trace::Track track() const { return track_; }

 protected:
  Stream(Trace* trace, std::string_view label)
      : trace_(trace), track_(trace == nullptr ? Trace::Track{} : trace->track(label)) {}

 private:
  Trace* trace_;
  Trace::Track track_;
};

inline bool Event::done() const {
  return stream == nullptr || stream->reached(point);
}
inline Status Event::wait() const {
  return stream == nullptr ? Status() : stream->sync(point);
}

struct MemoryInfo {
  size_t total_bytes = 0;
  size_t free_bytes = 0;
  // Discrete devices: bytes allocated from this Device, scratch of ops included, and their peak
  // since limit_memory(). The driver's and its libraries' share is not counted.
  size_t taken_bytes = 0;
  size_t peak_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // Whether the device has memory of its own. Otherwise the host reads and writes kDevice memory in
  // place, and kernels use kPinned memory.
  bool discrete() const { return kind() != DeviceKind::kCpu; }
  virtual std::string_view name() const = 0;
  virtual MemoryInfo memory() const = 0;

  // Allocates zeroed memory aligned to 4096 bytes; large CPU allocations ask for huge pages.
  // kCapacity: does not fit. 0 bytes give an empty Buffer.
  virtual Result<Buffer> allocate(Memory memory, size_t bytes) = 0;

  // Prefaults the buffer's pages, which would otherwise fault in one at a time at their first use;
  // the contents stay. For memory that is sure to be needed: this takes seconds per GB on some
  // virtual machines.
  virtual void prefault(const Buffer&) {}

  virtual std::unique_ptr<Stream> new_stream(std::string_view label) = 0;

  // Limits the memory of a discrete device: from now on an allocation that would raise
  // memory().taken_bytes above this fails with kCapacity; 0: no limit. Resets the peak.
  virtual void limit_memory(size_t) {}

  // The type in which activations enter linear layers whose weights are in `weights`, and the
  // layout the kernels want those weights in.
  virtual DType activation_dtype(Format weights) const = 0;
  virtual MatrixLayout matrix_layout(Format weights) const = 0;

  // Whether matrix products with weights of this format round activations to 8 bits
  // (cpu/gemm_int8.h), of a format that takes_hadamard() if the weights have it (input_hadamard.h).
  virtual bool in_int8(Format) const { return false; }

  // True when the device multiplies bf16 natively. (On a CPU this decides the default format of f16
  // checkpoints; other devices compute in f16 as well.)
  virtual bool native_bf16() const = 0;

  // Makes new streams record their work, each on the track of its label. Null: no recording. The
  // trace must outlive them. REQUIRES: no call of new_stream() at the same time.
  void set_trace(Trace* trace) { trace_ = trace; }

 protected:
  Trace* trace() const { return trace_; }

 private:
  Trace* trace_ = nullptr;
};

// Matmul backends of the CPU: kPanels, our kernels in float32 (any CPU, weights widened in
// registers); kBf16Dot, our kernels in bf16 for bf16 and 4-bit weights, where the CPU has dot
// products of bf16; kTiles, matrix units for bf16 weights where the CPU has them, else kBf16Dot.
// kFastest: kBf16Dot on AMD cores with dot products of bf16, matrix units for bf16 on Intel cores
// that have them (cpu/gemm_tiles.h), kPanels for all else; but matrix products with weights that
// were multiplied by Hadamard matrices for it (input_hadamard.h) round activations to 8 bits where
// the CPU can (cpu/gemm_int8.h). kFloat: kFastest, none in 8 bits. kInt8: all in 8 bits with
// weights of which takes_int8() holds.
enum class CpuMatmul : uint8_t { kFastest, kPanels, kBf16Dot, kTiles, kFloat, kInt8 };

// `threads` 0: one per core. kInvalidArgument: out of range, or the CPU cannot do kInt8.
Result<std::unique_ptr<Device>> open_cpu_device(int threads,
                                                CpuMatmul products = CpuMatmul::kFastest);
Result<std::unique_ptr<Device>> open_cuda_device(int index);  // kNotFound without CUDA.

}  // namespace spillway
