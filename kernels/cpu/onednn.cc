#include "kernels/cpu/onednn.h"

#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

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
memory::format_tag weights_tag(Format format) {
  return format == Format::kF32 ? memory::format_tag::BA16a64b : memory::format_tag::BA16a64b2a;
}

// Rows of one primitive. Up to 64 rows each count has its own kernel; more are cut into multiples
// of 64 up to 512, so that at most 72 kernels exist for a shape, whatever the prompts' lengths.
int64_t height_of(int64_t rows) {
  constexpr int64_t kStep = 64;
  constexpr int64_t kMost = 512;
  if (rows <= kStep) return rows;
  return rows >= kMost ? kMost : rows / kStep * kStep;
}

// Below zero, of oneDNN's ReLU. With a slope of 0 it is a maximum that makes NaN 0; with one it
// compares and keeps NaN. So small a slope is nothing to any sum, and no product of it is denormal.
constexpr float kReluSlope = 1e-30f;

// Rows of the input and of the output are dense: for others oneDNN 2.6 has a scalar body alone.
struct Key {
  Format format;
  DType in, out;
  bool bias, accumulate;
  Activation activation;
  int64_t rows, columns, outputs;
  friend auto operator<=>(const Key&, const Key&) = default;
};

dnnl::primitive_attr attributes(const Key& key) {
  dnnl::post_ops post;
  switch (key.activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      post.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, kReluSlope, 0.0f);
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
  const memory::desc in({key.rows, key.columns}, data_type(key.in), memory::format_tag::ab);
  const memory::desc weights({key.columns, key.outputs}, data_type(element_of(key.format)),
                             weights_tag(key.format));
  const memory::desc out({key.rows, key.outputs}, data_type(key.out), memory::format_tag::ab);
  if (!key.bias) {
    return {dnnl::matmul::desc(in, weights, out), attributes(key), engine};
  }
  const memory::desc bias({1, key.outputs}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::matmul::desc(in, weights, bias, out), attributes(key), engine};
}

// Neighbouring slabs that also lie side by side in memory are one matrix in this layout.
std::vector<WeightSlab> merged(const WeightMatrix& w) {
  std::vector<WeightSlab> found;
  for (const WeightSlab& slab : w.slabs) {
    const bool follows =
        !found.empty() &&
        slab.data ==
            found.back().data + packed_bytes(w.layout, w.format, found.back().rows, w.columns);
    if (follows && found.back().rows % kPanelRowMultiple == 0) {
      found.back().rows += slab.rows;
    } else {
      found.push_back(slab);
    }
  }
  return found;
}

// `rows` pieces of `bytes` from one place to another; strides in bytes.
void copy_rows(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
               int64_t rows, size_t bytes) {
  for (int64_t row = 0; row < rows; ++row, to += to_stride, from += from_stride) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

bool OneDnn::has_matrix_units() {
  return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
}

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
  std::vector<std::byte> dense_in, dense_out;

  // Asks for a real layer's shape; the reference body ("ref") is not worth choosing.
  bool is_fast(Format format) const {
    try {
      const Key key{
          format, element_of(format), DType::kF32, true, false, Activation::kNone, 64, 1024, 1024};
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

OneDnn::OneDnn(int threads, bool float32) : state_(std::make_unique<State>()) {
  state_->threads = threads;
  state_->fast[0] = float32 && state_->is_fast(Format::kF32);
  state_->fast[1] = state_->is_fast(Format::kBF16);
}

OneDnn::~OneDnn() = default;

bool OneDnn::supports(Format weights) const {
  if (weights == Format::kF32) return state_->fast[0];
  return weights == Format::kBF16 && state_->fast[1];
}

void OneDnn::linear(const LinearArgs& args) {
  omp_set_num_threads(state_->threads);  // Holds for the calling thread only.
  int64_t first_output = 0;
  for (const WeightSlab& slab : merged(args.weight)) {
    for (int64_t row = 0; row < args.in.rows;) {
      const int64_t rows = height_of(args.in.rows - row);
      multiply(args, slab, first_output, row, rows);
      row += rows;
    }
    first_output += slab.rows;
  }
}

// Rows [row, row + rows) of the input times one slab. Part of a matrix, when the rest lies
// elsewhere in memory, passes through dense rows.
void OneDnn::multiply(const LinearArgs& args, const WeightSlab& slab, int64_t first_output,
                      int64_t row, int64_t rows) {
  const WeightMatrix& w = args.weight;
  const Key key{w.format,        args.in.dtype,   args.out.dtype, args.bias != nullptr,
                args.accumulate, args.activation, rows,           w.columns,
                slab.rows};
  const auto& [description, kernel] = state_->kernel(key);
  const size_t in_bytes = static_cast<size_t>(w.columns) * dtype_bytes(args.in.dtype);
  const size_t in_stride = static_cast<size_t>(args.in.stride) * dtype_bytes(args.in.dtype);
  const size_t out_bytes = static_cast<size_t>(slab.rows) * dtype_bytes(args.out.dtype);
  const size_t out_stride = static_cast<size_t>(args.out.stride) * dtype_bytes(args.out.dtype);
  const std::byte* in = args.in.row(row);
  std::byte* const target =
      args.out.row(row) + static_cast<size_t>(first_output) * dtype_bytes(args.out.dtype);
  std::byte* out = target;
  if (in_stride != in_bytes && rows > 1) {
    state_->dense_in.resize(static_cast<size_t>(rows) * in_bytes);
    copy_rows(state_->dense_in.data(), in_bytes, in, in_stride, rows, in_bytes);
    in = state_->dense_in.data();
  }
  const bool through = out_stride != out_bytes && rows > 1;
  if (through) {
    state_->dense_out.resize(static_cast<size_t>(rows) * out_bytes);
    out = state_->dense_out.data();
    if (args.accumulate) copy_rows(out, out_bytes, target, out_stride, rows, out_bytes);
  }
  // oneDNN takes non-const pointers for its inputs too; it only reads them.
  const auto view = [&](const memory::desc& desc, const void* data) {
    return memory(desc, state_->engine, const_cast<void*>(data));
  };
  std::unordered_map<int, memory> operands = {
      {DNNL_ARG_SRC, view(description.src_desc(), in)},
      {DNNL_ARG_WEIGHTS, view(description.weights_desc(), slab.data)},
      {DNNL_ARG_DST, view(description.dst_desc(), out)}};
  if (args.bias != nullptr) {
    operands.emplace(DNNL_ARG_BIAS, view(description.bias_desc(), args.bias + first_output));
  }
  kernel.execute(state_->stream, operands);
  state_->stream.wait();
  if (through) copy_rows(target, out_stride, out, out_bytes, rows, out_bytes);
}

}  // namespace spillway::cpu
