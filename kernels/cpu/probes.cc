#include "kernels/cpu/probes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/base/check.h"

namespace spillway::cpu {

void read_memory(CpuContext& context, const std::byte* data, size_t bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  // Four places at a time, each asked for as far ahead as our products ask for their weights: with
  // one and no prefetching, products read faster than this (two Emerald Rapids cores, shared: 12.7
  // GB/s against 17).
  constexpr size_t kStreams = 4;
  constexpr size_t kWords = kPiece / kStreams / sizeof(uint64_t);  // Of a stream
  constexpr size_t kAhead = 2048 / sizeof(uint64_t);
  constexpr size_t kLine = 64 / sizeof(uint64_t);
  std::atomic<uint64_t> sink{0};
  context.parallel_for(static_cast<int64_t>(bytes / kPiece), [&](int64_t piece) {
    const auto* words =
        reinterpret_cast<const uint64_t*>(data + static_cast<size_t>(piece) * kPiece);
    // Independent sums let the compiler keep vector loads in flight.
    uint64_t sums[kStreams * kLine] = {};
    for (size_t i = 0; i < kWords; i += kLine) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const uint64_t* line = words + stream * kWords + i;
        __builtin_prefetch(line + kAhead);
        for (size_t j = 0; j < kLine; ++j) sums[stream * kLine + j] += line[j];
      }
    }
    uint64_t sum = 0;
    for (uint64_t s : sums) sum += s;
    sink.fetch_add(sum, std::memory_order_relaxed);
  });
}

struct LibraryProduct::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
  std::unordered_map<int, dnnl::memory> operands;
};

LibraryProduct::LibraryProduct(DType dtype, int64_t rows, int64_t outputs, int64_t inputs)
    : state_(std::make_unique<State>()) {
  using dnnl::memory;
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  const auto type = dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
  const memory::desc in({rows, inputs}, type, memory::format_tag::ab);
  const memory::desc weights({inputs, outputs}, type, memory::format_tag::any);
  const memory::desc out({rows, outputs}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(in, weights, out),
                                                 state_->engine);
  state_->product = dnnl::matmul(description);
  const std::pair<int, memory::desc> arguments[] = {{DNNL_ARG_SRC, description.src_desc()},
                                                    {DNNL_ARG_WEIGHTS, description.weights_desc()},
                                                    {DNNL_ARG_DST, description.dst_desc()}};
  for (const auto& [argument, desc] : arguments) {
    memory operand(desc, state_->engine);
    // 0x3c3c is a small positive number in f32 and bf16; zeros would be shared pages.
    std::memset(operand.get_data_handle(), 0x3c, desc.get_size());
    state_->operands.emplace(argument, operand);
  }
}

LibraryProduct::~LibraryProduct() = default;

void LibraryProduct::run() {
  state_->product.execute(state_->stream, state_->operands);
  state_->stream.wait();
}

}  // namespace spillway::cpu
