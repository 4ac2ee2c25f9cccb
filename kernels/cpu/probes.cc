#include "kernels/cpu/probes.h"

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/base/check.h"

namespace spillway::cpu {

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
