// The CPU as a compute device: memory is host memory, a stream runs its work inside the call.
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/numa.h"
#include "kernels/base/processors.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/device.h"
#include "kernels/input_hadamard.h"

namespace spillway {

namespace {

constexpr int kThreadsMax = 1024;

class CpuStream final : public Stream {
 public:
  CpuStream(cpu::CpuContext* context, Trace* trace, std::string_view label)
      : Stream(trace, label), context_(context) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    const TraceSpan span(trace(), track(), "copy", "bytes", static_cast<int64_t>(bytes));
    std::memcpy(to, from, bytes);
  }
  void wait(Event event) override {
    if (Status status = event.wait(); error_.ok()) error_ = status;
  }
  Event record() override { return {this, 0}; }
  bool reached(uint64_t) const override { return true; }
  Status sync(uint64_t) override { return error_; }
  void* native() const override { return context_; }

 private:
  cpu::CpuContext* context_;
  Status error_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, CpuMatmul products)
      : context_(threads, products),
        nodes_(nodes_to_spread_over()),
        name_("CPU, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
              (products == CpuMatmul::kInt8    ? ", 8-bit products"
               : products == CpuMatmul::kFloat ? ", no 8-bit products"
                                               : "") +
              (nodes_.empty()
                   ? ""
                   : ", memory spread over " + std::to_string(nodes_.size()) + " nodes")) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string_view name() const override { return name_; }

  MemoryInfo memory() const override {
    struct sysinfo info {};
    if (sysinfo(&info) != 0) return {};
    return {info.totalram * info.mem_unit, info.freeram * info.mem_unit};
  }

  Result<Buffer> allocate(Memory, size_t bytes) override {
    if (bytes == 0) return Buffer();
    // Fresh pages of mmap are zero; huge ones save most page faults and TLB misses.
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return Status(Code::kCapacity,
                    "the host has no room for " + std::to_string(bytes) + " bytes");
    }
    constexpr size_t kHugePage = size_t{2} << 20;
    if (bytes >= kHugePage) {
      madvise(data, bytes, MADV_HUGEPAGE);
      // Where that is forbidden, pages lie as Linux puts them.
      if (!nodes_.empty()) interleave(static_cast<std::byte*>(data), bytes, nodes_);
    }
    return Buffer(static_cast<std::byte*>(data), bytes,
                  [bytes](std::byte* memory) { munmap(memory, bytes); });
  }

  void prefault(const Buffer& buffer) override {
    constexpr size_t kPiece = size_t{32} << 20;
    context_.parallel_for(
        static_cast<int64_t>((buffer.bytes() + kPiece - 1) / kPiece), [&](int64_t piece) {
          const size_t at = static_cast<size_t>(piece) * kPiece;
          // Linux before 5.14 does not know it; the pages then fault in at their first use.
          madvise(buffer.data() + at, std::min(kPiece, buffer.bytes() - at), MADV_POPULATE_WRITE);
        });
  }

  std::unique_ptr<Stream> new_stream(std::string_view label) override {
    return std::make_unique<CpuStream>(&context_, trace(), label);
  }

  DType activation_dtype(Format weights) const override {
    const bool in_bf16 = (weights == Format::kBF16 && native_bf16()) ||
                         (is_quantized(weights) && context_.bf16_dot());
    return in_bf16 ? DType::kBF16 : DType::kF32;
  }
  MatrixLayout matrix_layout(Format) const override { return MatrixLayout::kPanels16; }
  bool in_int8(Format weights) const override {
    return context_.int8(weights, takes_hadamard(weights));
  }
  bool native_bf16() const override { return context_.bf16_dot() || context_.tiles(); }

 private:
  cpu::CpuContext context_;
  std::vector<int> nodes_;  // That memory is spread over; empty: it is not
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_cpu_device(int threads, CpuMatmul products) {
  if (threads < 0 || threads > kThreadsMax) {
    return invalid_argument("--threads must be 0 (one a core) to " + std::to_string(kThreadsMax));
  }
  if (products == CpuMatmul::kInt8 && !cpu::has_int8()) {
    return invalid_argument("8-bit products need a CPU with AVX2 or AVX-512 VNNI");
  }
  if (threads == 0) threads = usable_cores();
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(threads, products));
}

}  // namespace spillway
