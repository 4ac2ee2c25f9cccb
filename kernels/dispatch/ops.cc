#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"

namespace spillway {

namespace {

bool float_or_bf16(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

// Output formats of row-wise ops: on CUDA also float16.
bool activation_format(const Stream& stream, DType dtype) {
  return float_or_bf16(dtype) || (dtype == DType::kF16 && stream.kind() == DeviceKind::kCuda);
}

// Whether a cache has its first `blocks` KV blocks.
bool all_there(const KvBlocks& kv, int64_t blocks) {
  if (kv.table == nullptr) return kv.first != nullptr;
  return std::find(kv.table, kv.table + blocks, nullptr) == kv.table + blocks;
}

// A prompt behind a beginning: AttentionItem says what it needs.
void check_beginning(const AttentionArgs& args, const AttentionItem& item) {
  const KvBudget& budget = item.budget;
  SPILLWAY_CHECK(item.position > 0 && item.position % kKvBlockRows == 0);
  SPILLWAY_CHECK(item.position + item.tokens == item.prompt);
  SPILLWAY_CHECK(all_there(item.beginning, kv_blocks(item.position)));
  SPILLWAY_CHECK(!budget.full() && budget.chunk_ring == 0 && args.window == 0);
  const bool counted = budget.scored() && budget.scored_from(item.prompt) < item.position;
  SPILLWAY_CHECK(!counted || !budget.snaps());
  SPILLWAY_CHECK(counted == (item.beginning_scores != nullptr));
  SPILLWAY_CHECK(!counted || args.kv.heads == 1 || item.beginning_scores_stride >= item.position);
}

void check_norm(const Stream& stream, const NormArgs& args) {
  SPILLWAY_CHECK(args.in.dtype == DType::kF32 && activation_format(stream, args.out.dtype));
  SPILLWAY_CHECK(args.in.rows == args.out.rows && args.in.columns == args.out.columns);
}

// The norm in front of a linear layer.
void check_input(const Stream& stream, const ConstMatrixView& in, const WeightMatrix& weight,
                 const std::optional<NormArgs>& norm) {
  SPILLWAY_CHECK(activation_format(stream, in.dtype) && in.columns == weight.columns);
  if (!norm) return;
  check_norm(stream, *norm);
  SPILLWAY_CHECK(norm->out.data == in.data && norm->out.dtype == in.dtype);
  SPILLWAY_CHECK(norm->in.rows == in.rows && norm->in.columns == in.columns);
}

// The name and the rows are for the trace.
template <class Args>
void run_on_cpu(Stream& stream, const char* name, int64_t rows, const Args& args) {
  SPILLWAY_CHECK(stream.kind() == DeviceKind::kCpu);
  const TraceSpan span(stream.trace(), stream.track(), name, "rows", rows);
  cpu::run(*static_cast<cpu::CpuContext*>(stream.native()), args);
}

// Runs the body of the stream's device. A stream of a CUDA device that could not be made has no
// context: it skips its work and reports the reason when it is waited for.
template <class Args>
void dispatch(Stream& stream, const char* name, int64_t rows, const Args& args) {
  if (stream.kind() == DeviceKind::kCuda) {
    auto* context = static_cast<cuda::CudaContext*>(stream.native());
    if (context != nullptr) cuda::run_op(*context, name, rows, &args);
    return;
  }
  run_on_cpu(stream, name, rows, args);
}

}  // namespace

Status check_shape(DeviceKind kind, const ModelShape& shape) {
  if (shape.parallel && shape.norm_place == NormPlace::kPost) {
    return invalid_argument(
        "the model's layers run attention and MLP side by side with the norms behind them, which "
        "this version does not run");
  }
  const bool out_bias = shape.attention_out_bias || shape.mlp_bias;
  if (shape.residual_scale != 1.0f && out_bias) {
    return invalid_argument(
        "the model scales what its layers add to the residual stream and has biases there, which "
        "this version does not run");
  }
  if (kind == DeviceKind::kCpu || shape.head_size <= cuda::kHeadSizeMax) return {};
  return invalid_argument("the model's attention heads are " + std::to_string(shape.head_size) +
                          " wide, and CUDA kernels take up to " +
                          std::to_string(cuda::kHeadSizeMax) + "; use --device cpu");
}

void gather_rows(Stream& stream, const GatherArgs& args) {
  SPILLWAY_CHECK(args.table.layout == MatrixLayout::kRows && args.table.slab_rows > 0);
  SPILLWAY_CHECK(args.out.dtype == DType::kF32 && args.out.columns == args.table.columns);
  SPILLWAY_CHECK(args.out.rows == static_cast<int64_t>(args.rows.size()));
  for (int32_t row : args.rows) SPILLWAY_CHECK(row >= 0 && row < args.table.rows);
  dispatch(stream, "gather", args.out.rows, args);
}

void normalize(Stream& stream, const NormArgs& args) {
  check_norm(stream, args);
  dispatch(stream, "normalize", args.in.rows, args);
}

void rotate_heads(Stream& stream, const RotateArgs& args) {
  SPILLWAY_CHECK(args.qkv.dtype == DType::kF32 && args.table.dtype == DType::kF32);
  SPILLWAY_CHECK(args.qkv.columns == (args.heads + 2 * args.kv_heads) * args.head_size);
  SPILLWAY_CHECK(args.table.columns % 2 == 0 && args.table.columns <= args.head_size);
  SPILLWAY_CHECK(args.table.columns == 0 || args.table.rows == args.qkv.rows);
  SPILLWAY_CHECK((args.query_norm == nullptr) == (args.key_norm == nullptr));
  if (args.qkv.rows == 0) return;
  dispatch(stream, "rotate", args.qkv.rows, args);
}

void gate_rows(Stream& stream, const GateArgs& args) {
  SPILLWAY_CHECK(activation_format(stream, args.out.dtype) && args.in.dtype == args.out.dtype);
  SPILLWAY_CHECK(args.in.rows == args.out.rows && args.in.columns == 2 * args.out.columns);
  if (args.in.rows == 0) return;
  dispatch(stream, "gate", args.in.rows, args);
}

void convert_rows(Stream& stream, const ConvertArgs& args) {
  SPILLWAY_CHECK(args.in.dtype == DType::kF32 || args.in.dtype == args.out.dtype);
  SPILLWAY_CHECK(activation_format(stream, args.out.dtype));
  SPILLWAY_CHECK(args.in.rows == args.out.rows && args.in.columns == args.out.columns);
  dispatch(stream, "convert", args.in.rows, args);
}

void sample_rows(Stream& stream, const SampleArgs& args) {
  SPILLWAY_CHECK(args.in.dtype == DType::kF32 && args.out != nullptr);
  SPILLWAY_CHECK(args.in.rows == static_cast<int64_t>(args.rules.size()));
  for (const SampleRule& rule : args.rules) {
    SPILLWAY_CHECK(rule.count >= 0 && rule.count <= args.in.columns);
    SPILLWAY_CHECK(rule.temperature >= 0 && rule.uniform >= 0 && rule.uniform < 1);
  }
  dispatch(stream, "sample", args.in.rows, args);
}

void expand_rows(Stream& stream, const ExpandArgs& args) {
  SPILLWAY_CHECK(args.from.layout == MatrixLayout::kRows && is_quantized(args.from.format));
  SPILLWAY_CHECK(float_or_bf16(args.out.dtype) || args.out.dtype == DType::kF16);
  SPILLWAY_CHECK(args.out.rows == args.from.rows && args.out.columns == args.from.columns);
  dispatch(stream, "expand", args.out.rows, args);
}

void linear(Stream& stream, const LinearArgs& args) {
  check_input(stream, args.in, args.weight, args.norm);
  SPILLWAY_CHECK(activation_format(stream, args.out.dtype));
  SPILLWAY_CHECK(args.in.rows == args.out.rows && args.out.columns == args.weight.rows);
  SPILLWAY_CHECK(!args.accumulate ||
                 (args.activation == Activation::kNone && args.out.dtype == DType::kF32));
  SPILLWAY_CHECK(args.scale == 1.0f ||
                 (args.bias == nullptr && args.activation == Activation::kNone));
  SPILLWAY_CHECK(args.rounded_bias == nullptr ||
                 (args.bias != nullptr && args.out.dtype != DType::kF32));
  if (args.in.rows == 0) return;
  if (args.norm && stream.kind() != DeviceKind::kCpu) {
    normalize(stream, *args.norm);
    LinearArgs normed = args;
    normed.norm.reset();
    return linear(stream, normed);
  }
  dispatch(stream, "linear", args.in.rows, args);
}

MatrixView linear_gated(Stream& stream, const GatedLinearArgs& args) {
  check_input(stream, args.in, args.weight, args.norm);
  SPILLWAY_CHECK(args.weight.rows % 2 == 0 && args.inner.columns == args.weight.rows);
  SPILLWAY_CHECK(args.inner.stride >= args.inner.columns && args.in.rows == args.inner.rows);
  SPILLWAY_CHECK(activation_format(stream, args.inner.dtype));
  MatrixView out = args.inner;
  out.columns = args.weight.rows / 2;
  if (stream.kind() == DeviceKind::kCpu && cpu::has_whole_tiles(out.columns)) {
    out.stride = out.columns;
    if (args.in.rows > 0) run_on_cpu(stream, "linear", args.in.rows, args);
    return out;
  }
  linear(stream, {.in = args.in,
                  .weight = args.weight,
                  .bias = args.bias,
                  .rounded_bias = args.rounded_bias,
                  .out = args.inner,
                  .norm = args.norm});
  gate_rows(stream, {.activation = args.activation, .in = args.inner, .out = out});
  return out;
}

void attention(Stream& stream, const AttentionArgs& args) {
  const KvLayout& kv = args.kv;
  SPILLWAY_CHECK(args.qkv.dtype == DType::kF32);
  SPILLWAY_CHECK(float_or_bf16(args.out.dtype) || args.out.dtype == DType::kF16);
  SPILLWAY_CHECK(args.heads > 0 && args.heads % kv.heads == 0);
  SPILLWAY_CHECK(args.qkv.columns == (args.heads + 2 * kv.heads) * kv.head_size);
  SPILLWAY_CHECK(args.out.columns == args.heads * kv.head_size);
  SPILLWAY_CHECK(args.window == 0 || args.window >= 2);
  SPILLWAY_CHECK(std::isfinite(args.scale) && args.scale >= 0);
  for (const AttentionItem& item : args.items) {
    SPILLWAY_CHECK(item.tokens >= 1 && item.first_row >= 0);
    SPILLWAY_CHECK(item.first_row + item.tokens <= args.qkv.rows);
    SPILLWAY_CHECK(item.is_step()
                       ? item.tokens == 1 || item.budget.full()
                       : item.position >= 0 && item.position + item.tokens <= item.prompt_tokens());
    SPILLWAY_CHECK(all_there(item.kv, kv_blocks(item.capacity())));
    SPILLWAY_CHECK(!item.budget.has_state() || item.state != nullptr);
    SPILLWAY_CHECK(item.budget.first >= 0 && item.budget.first <= item.budget.kept);
    if (item.behind_beginning()) check_beginning(args, item);
    if (item.budget.chunk_ring == 0 || item.is_step() || item.whole()) continue;
    // No row is lost that a query of the chunk attends to or that stays; tiles are not cut.
    SPILLWAY_CHECK(item.budget.chunk_ring % 64 == 0 && item.budget.kept == 0);
    SPILLWAY_CHECK(args.window > item.budget.recent && item.budget.recent > 0);
    SPILLWAY_CHECK(item.budget.chunk_ring >= args.window - 1 + item.tokens);
  }
  dispatch(stream, "attention", args.qkv.rows, args);
}

}  // namespace spillway
