#include "kernels/cpu/onednn.h"

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>

#include "kernels/base/check.h"

// OpenMP's own header is not on every compiler's path; the function is in the runtime oneDNN uses.
extern "C" void omp_set_num_threads(int threads);

namespace spillway::cpu {

namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// kPanels64 in oneDNN's words, for a [columns, rows] matrix.
memory::format_tag weights_tag(DType format) {
  return format == DType::kF32 ? memory::format_tag::BA16a64b : memory::format_tag::BA16a64b2a;
}

// Rows of one primitive. Up to 64 rows each count has its own kernel; more are cut into multiples
// of 64 up to 512, so that at most 72 kernels exist for a shape, whatever the prompts' lengths.
int64_t height_of(int64_t rows) {
  constexpr int64_t kStep = 64;
  constexpr int64_t kMost = 512;
  if (rows <= kStep) return rows;
  return rows >= kMost ? kMost : rows / kStep * kStep;
}

struct Key {
  DType format, in, out;
  bool bias, accumulate;
  Activation activation;
  int64_t rows, columns, outputs, in_stride, out_stride;
  friend auto operator<=>(const Key&, const Key&) = default;
};

dnnl::primitive_attr attributes(const Key& key) {
  dnnl::post_ops post;
  switch (key.activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      post.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
      break;
    case Activation::kGelu:
      post.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
      break;
    case Activation::kGeluTanh:
      post.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_tanh, 0.0f, 0.0f);
      break;
    case Activation::kSilu:
      post.append_eltwise(1.0f, dnnl::algorithm::eltwise_swish, 1.0f, 0.0f);
      break;
  }
  if (key.accumulate) post.append_sum(1.0f);
  dnnl::primitive_attr attr;
  attr.set_post_ops(post);
  return attr;
}

dnnl::matmul::primitive_desc describe(const Key& key, const dnnl::engine& engine) {
  const memory::desc in({key.rows, key.columns}, data_type(key.in), {key.in_stride, 1});
  const memory::desc weights({key.columns, key.outputs}, data_type(key.format),
                             weights_tag(key.format));
  const memory::desc out({key.rows, key.outputs}, data_type(key.out), {key.out_stride, 1});
  if (!key.bias) {
    return {dnnl::matmul::desc(in, weights, out), attributes(key), engine};
  }
  const memory::desc bias({1, key.outputs}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::matmul::desc(in, weights, bias, out), attributes(key), engine};
}

}  // namespace

struct OneDnn::State {
  int threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  struct Kernel {
    dnnl::matmul::primitive_desc description;
    dnnl::matmul run;
  };
  std::map<Key, Kernel> kernels;
  bool fast[2] = {false, false};  // f32, bf16

  // Asks for a real layer's shape; the reference body ("ref") is not worth choosing.
  bool is_fast(DType format) const {
    try {
      const Key key{format, format, DType::kF32, true, false, Activation::kNone,
                    64,     1024,   1024,        1024, 1024};
      const auto description = describe(key, engine);
      return std::string_view(description.impl_info_str()).find("ref") == std::string_view::npos;
    } catch (const dnnl::error&) {
      return false;
    }
  }

  const Kernel& kernel(const Key& key) {
    const auto found = kernels.find(key);
    if (found != kernels.end()) return found->second;
    const auto description = describe(key, engine);
    return kernels.emplace(key, Kernel{description, dnnl::matmul(description)}).first->second;
  }
};

OneDnn::OneDnn(int threads) : state_(std::make_unique<State>()) {
  state_->threads = threads;
  state_->fast[0] = state_->is_fast(DType::kF32);
  state_->fast[1] = state_->is_fast(DType::kBF16);
}

OneDnn::~OneDnn() = default;

bool OneDnn::supports(DType weights) const {
  if (weights == DType::kF32) return state_->fast[0];
  return weights == DType::kBF16 && state_->fast[1];
}

void OneDnn::linear(const LinearArgs& args) {
  omp_set_num_threads(state_->threads);  // Holds for the calling thread only.
  const WeightMatrix& w = args.weight;
  int64_t first_output = 0;
  for (const WeightSlab& slab : w.slabs) {
    for (int64_t row = 0; row < args.in.rows;) {
      const int64_t rows = height_of(args.in.rows - row);
      const Key key{w.format,        args.in.dtype,   args.out.dtype, args.bias != nullptr,
                    args.accumulate, args.activation, rows,           w.columns,
                    slab.rows,       args.in.stride,  args.out.stride};
      const auto& [description, kernel] = state_->kernel(key);
      // oneDNN takes non-const pointers for its inputs too; it only reads them.
      const auto view = [&](const memory::desc& desc, const void* data) {
        return memory(desc, state_->engine, const_cast<void*>(data));
      };
      const std::byte* out =
          args.out.row(row) + static_cast<size_t>(first_output) * dtype_bytes(args.out.dtype);
      std::unordered_map<int, memory> operands = {
          {DNNL_ARG_SRC, view(description.src_desc(), args.in.row(row))},
          {DNNL_ARG_WEIGHTS, view(description.weights_desc(), slab.data)},
          {DNNL_ARG_DST, view(description.dst_desc(), out)}};
      if (args.bias != nullptr) {
        operands.emplace(DNNL_ARG_BIAS, view(description.bias_desc(), args.bias + first_output));
      }
      kernel.execute(state_->stream, operands);
      row += rows;
    }
    first_output += slab.rows;
  }
  state_->stream.wait();
}

}  // namespace spillway::cpu
