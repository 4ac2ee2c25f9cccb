#include "kernels/cpu/onednn.h"

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cpu/gemm_f32.h"

// OpenMP's own header is not on every compiler's path; the functions are in the runtime oneDNN
// uses.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int threads);

namespace spillway::cpu {

namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// oneDNN's tag of kPanels64, for a [columns, rows] matrix.
memory::format_tag weights_tag(Format format) {
  return format == Format::kF32 ? memory::format_tag::BA16a64b : memory::format_tag::BA16a64b2a;
}

// The caller provides scratch memory, since oneDNN's own belongs to the thread that makes a
// primitive. The number of threads that a primitive is made for is that thread's, too.
dnnl::matmul::primitive_desc describe(Format format, int64_t columns, const dnnl::engine& engine) {
  const memory::desc in({kOneDnnRows, columns}, data_type(element_of(format)),
                        memory::format_tag::ab);
  const memory::desc weights({columns, kGemmColumns}, data_type(element_of(format)),
                             weights_tag(format));
  const memory::desc out({kOneDnnRows, kGemmColumns}, memory::data_type::f32,
                         memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(in, weights, out), attributes,
                                                 engine);
  omp_set_num_threads(threads);
  return description;
}

}  // namespace

struct OneDnn::Kernel {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul run{description};
};

struct OneDnn::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::pair<Format, int64_t>, Kernel> kernels;
  bool fast[2] = {false, false};  // f32, bf16

  // Asks for a real layer's inputs; the reference body ("ref") is not worth choosing.
  bool is_fast(Format format) const {
    try {
      const auto description = describe(format, 1024, engine);
      return std::string_view(description.impl_info_str()).find("ref") == std::string_view::npos;
    } catch (const dnnl::error&) {
      return false;
    }
  }
};

OneDnn::OneDnn() : state_(std::make_unique<State>()) {
  state_->fast[0] = state_->is_fast(Format::kF32);
  state_->fast[1] = state_->is_fast(Format::kBF16);
}

OneDnn::~OneDnn() = default;

bool OneDnn::supports(Format weights) const {
  if (weights == Format::kF32) return state_->fast[0];
  return weights == Format::kBF16 && state_->fast[1];
}

const OneDnn::Kernel& OneDnn::kernel(Format format, int64_t columns) {
  const auto found = state_->kernels.find({format, columns});
  if (found != state_->kernels.end()) return found->second;
  const auto description = describe(format, columns, state_->engine);
  return state_->kernels.emplace(std::pair(format, columns), Kernel{description}).first->second;
}

size_t OneDnn::scratch_bytes(const Kernel& kernel) {
  return kernel.description.scratchpad_desc().get_size();
}

void OneDnn::multiply(const Kernel& kernel, const std::byte* a, const std::byte* panel,
                      std::byte* scratch, float* c) const {
  // oneDNN takes non-const pointers for its inputs too; it only reads them.
  const auto view = [&](const memory::desc& desc, const void* data) {
    return memory(desc, state_->engine, const_cast<void*>(data));
  };
  const auto& description = kernel.description;
  kernel.run.execute(state_->stream,
                     {{DNNL_ARG_SRC, view(description.src_desc(), a)},
                      {DNNL_ARG_WEIGHTS, view(description.weights_desc(), panel)},
                      {DNNL_ARG_DST, view(description.dst_desc(), c)},
                      {DNNL_ARG_SCRATCHPAD, view(description.scratchpad_desc(), scratch)}});
}

}  // namespace spillway::cpu
