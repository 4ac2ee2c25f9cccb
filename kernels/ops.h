// The operations a decoder is made of. Each is declared here, checked and dispatched in
// dispatch/ops.cc, and has one body in cpu/ and one in cuda/; tests/support/scalar_ops.h holds the
// scalar definition that every body must agree with. Ops take views, allocate nothing that a later
// call would allocate again, and never synchronise: the work is in the stream's order.
//
// Shapes: T tokens of a micro-batch (concatenated sequences, no padding), H hidden width. The
// residual stream and everything but the inputs of linear layers is float32; those inputs have the
// device's activation_dtype for the weights' format.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/model_shape.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_state.h"
#include "kernels/sampling/sample.h"
#include "kernels/tensor.h"

namespace spillway {

// Checks that the ops of a device of this kind can run a decoder of this shape; called when a model
// is opened, before anything else uses the shape. kInvalidArgument names the unsupported part.
Status check_shape(DeviceKind kind, const ModelShape& shape);

// out[i] = scale * table[rows[i]], or out[i] += with `accumulate`. The table is kRows, any format;
// out is f32 [rows.size(), columns]. REQUIRES: 0 <= rows[i] < table.rows.
struct GatherArgs {
  WeightMatrix table;
  std::span<const int32_t> rows;
  float scale = 1.0f;
  MatrixView out;
  bool accumulate = false;
};
void gather_rows(Stream& stream, const GatherArgs& args);

// LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019) over each row of `in` (f32
// [T, H]), statistics in f32. weight and bias are f32 [H] or null. out: f32, bf16 or, on CUDA, f16;
// may be `in`.
struct NormArgs {
  NormKind kind = NormKind::kLayerNorm;
  float epsilon = 1e-5f;
  ConstMatrixView in;
  const float* weight = nullptr;
  const float* bias = nullptr;
  MatrixView out;
};
void normalize(Stream& stream, const NormArgs& args);

// The largest power of two that divides a head's size.
constexpr int64_t hadamard_size(int64_t head_size) {
  return head_size & -head_size;
}

// Prepares the query and key heads of each row of qkv (f32 [T, (heads + 2 kv_heads) * head_size])
// for attention, in place: RMSNorm of each head with the weights f32 [head_size] (Qwen3; null:
// none), then rotary positions (Su et al. 2021) of its first table.columns numbers. Row t of
// `table` (f32 [T, dims]; no columns: no rotation) has the cosines of row t's dims / 2 angles, then
// their sines; pair i is (i, i + dims / 2), or (2i, 2i + 1) with `interleaved`. With `hadamard`
// each run of hadamard_size(head_size) numbers is then multiplied by the Walsh-Hadamard matrix of
// that size over its square root, number i of the product being the sum of (-1)^popcount(i & j)
// x[j]. That leaves q . k what it was and spreads what is large in a few numbers over all, so that
// keys lose less when they are rounded to few bits (QuaRot, Ashkboos et al. 2024, arXiv
// 2404.00456).
struct RotateArgs {
  MatrixView qkv;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 1e-6f;
  ConstMatrixView table;
  bool interleaved = false;
  bool hadamard = false;
};
void rotate_heads(Stream& stream, const RotateArgs& args);

// out = act(gate) * up, for gate the first and up the second half of the columns of `in` [T, 2 W]
// (Shazeer 2020, arXiv 2002.05202). out [T, W] has in's format, f32, bf16 or, on CUDA, f16, and may
// be the first half of `in`; computed in f32.
struct GateArgs {
  Activation activation = Activation::kSilu;
  ConstMatrixView in;
  MatrixView out;
};
void gate_rows(Stream& stream, const GateArgs& args);

// out = in, in out's format: f32 to f32, bf16 or, on CUDA, f16; or a copy, in in's own format. Same
// shape.
struct ConvertArgs {
  ConstMatrixView in;
  MatrixView out;
};
void convert_rows(Stream& stream, const ConvertArgs& args);

// out[i] = sample(row i of `in`, rules[i]), see kernels/sampling/sample.h; where a rule's `uniform`
// is within rounding of the border between two indices, either may be sampled. `in` (f32) is
// overwritten, except rows whose index is -1. `rules`: one per row, on the host. `out`: one per
// row, in the stream's device memory.
struct SampleArgs {
  MatrixView in;
  std::span<const SampleRule> rules;
  int32_t* out = nullptr;
};
void sample_rows(Stream& stream, const SampleArgs& args);

// out = the 4-bit rows of `from` (kRows), in out's format: f32, bf16 or f16, rounded to nearest.
// For weights that several calls of linear() use; linear() over the result equals linear() over
// `from`, on a GPU except for the order of its sums, and for the rounding of the weights where
// linear() has few rows.
struct ExpandArgs {
  WeightMatrix from;
  MatrixView out;
};
void expand_rows(Stream& stream, const ExpandArgs& args);

// Most batch rows for which a discrete device multiplies quantised weights as they are; for more
// rows it expands them first: on an H200 64 rows of 16384 x 4096 4-bit weights took 92 us that way,
// 101 as they are in two parts of 32 (docs/benchmarks/gpu-h200.md).
constexpr int64_t kFewRows = 32;

// out = act(in W^T + bias), or out += in W^T + bias with `accumulate` (then act is kNone, out f32).
// `scale` is a factor of in W^T; other than 1 it goes with neither bias nor activation.
// With a `norm`, `in` is its output and holds nothing yet: it is where the norm's result goes on
// devices that compute it first. A CPU norms rows where it packs them. Nothing else may read it.
// in [T, W.columns] in the activation dtype, out [T, W.rows] f32 or the activation dtype, bias f32
// [W.rows] or null (CUDA rounds it to the format of out in every call, unless `rounded_bias` holds
// the rounded bias; other devices ignore that). Accumulates in f32; a row's result depends on that
// row alone. On a GPU it depends also on the order of sums, which the library chooses by the shapes
// and alignments of a product: there a row has the same bits in products of the same shapes, and is
// the same to within rounding in others.
struct LinearArgs {
  ConstMatrixView in;
  WeightMatrix weight;
  const float* bias = nullptr;
  const std::byte* rounded_bias = nullptr;
  Activation activation = Activation::kNone;
  float scale = 1.0f;
  MatrixView out;
  bool accumulate = false;
  std::optional<NormArgs> norm = {};
};
void linear(Stream& stream, const LinearArgs& args);

// What a gated MLP has between its linear layers, act(in G^T + g) * (in U^T + u), for G and g the
// first and U and u the second half of the rows of `weight` and of `bias` (Shazeer 2020, arXiv
// 2002.05202). Formats, biases and what a row depends on are those of linear().
//
// Returns where the result lies, [T, W.rows / 2] in the memory of `inner` [T, W.rows], dense: its
// first half, or the first half of each of its rows. A CPU multiplies the halves side by side and
// gates what it has not yet rounded; where halves do not begin at a whole tile of 64 outputs, and
// on CUDA, linear() goes to `inner`, and gate_rows() follows.
struct GatedLinearArgs {
  ConstMatrixView in;
  WeightMatrix weight;
  const float* bias = nullptr;
  const std::byte* rounded_bias = nullptr;
  Activation activation = Activation::kSilu;
  MatrixView inner;
  std::optional<NormArgs> norm = {};
};
MatrixView linear_gated(Stream& stream, const GatedLinearArgs& args);

// One sequence's share of a micro-batch: rows [first_row, first_row + tokens) of qkv and out, at
// positions [position, position + tokens). `prompt`: the length of the prompt that these rows are
// of, whole or a chunk of it; 0 for a decode step. At position 0 it may be left 0 for a whole
// prompt.
//
// A decode step has one token, or under a full budget several, of which those behind the first are
// a draft (Leviathan et al. 2022, arXiv 2211.17192): each row gets the bits, and leaves the cache,
// as if the tokens went one by one. Where a draft proves wrong, later calls store over its rows.
//
// `kv` is the sequence's cache of this layer after `position` positions, with room for capacity()
// rows at least: in one piece of memory, or in blocks that lie apart. A block table lies in the
// host's memory and has an entry, not null, for each block of capacity() rows; nothing reads it
// after attention() has returned. `state` is set when budget.has_state(): of
// KvStateLayout::bytes(), for a chunk of chunked_bytes(prompt). `layer`: by which a budget draws
// its random numbers.
//
// `beginning`: under a limited budget the end of a prompt may go through at once behind the
// prompt's beginning, which other sequences share. These blocks have the rows of positions [0,
// position), position p in slot p. They are only read, and several items of a call may have the
// same ones; a block table lies in the host's memory, as that of `kv`. `kv` and `state` are those
// of a whole prompt, with nothing of it in them yet, and get what attention() to the whole prompt
// would leave there. REQUIRES: `position` is a multiple of kKvBlockRows and not 0, position +
// tokens == prompt, the budget has no chunk_ring, and AttentionArgs::window is 0.
//
// `beginning_scores`: the sums of the weights that the queries before `position` gave to each
// position before it, in memory of the stream's device; those of KV head h start at
// beginning_scores + h * beginning_scores_stride. They are what chunks of a longer prompt leave at
// KvStateLayout::prompt_scores_at(). Null where these queries count in no score. REQUIRES: for snap
// they do not, budget.scored_from(prompt) >= position.
struct AttentionItem {
  int64_t first_row = 0;
  int64_t tokens = 0;
  int64_t position = 0;
  KvBlocks kv = {};
  KvBudget budget = {};
  std::byte* state = nullptr;
  int64_t prompt = 0;
  int64_t layer = 0;
  KvBlocks beginning = {};
  const float* beginning_scores = nullptr;
  int64_t beginning_scores_stride = 0;

  bool is_step() const { return prompt == 0 && position > 0; }
  int64_t prompt_tokens() const { return prompt > 0 || position > 0 ? prompt : tokens; }
  bool behind_beginning() const { return beginning.first != nullptr || beginning.table != nullptr; }
  // Whether a prompt, or all of it that lies behind its beginning, goes through at once; else it is
  // a chunk.
  bool whole() const { return behind_beginning() || (position == 0 && tokens == prompt_tokens()); }
  // Whether the rows end a prompt.
  bool ends_prompt() const { return !is_step() && position + tokens == prompt_tokens(); }
  // One token of a decode step, alone.
  AttentionItem step_token(int64_t token) const {
    AttentionItem one = *this;
    one.first_row += token;
    one.position += token;
    one.tokens = 1;
    return one;
  }
  // Rows that the cache has room for, at least. Of a prompt in chunks it holds all rows until the
  // end of the last chunk.
  int64_t capacity() const {
    const int64_t end = position + tokens;
    if (is_step() || whole()) return budget.span(end);
    return std::max(budget.in_chunks(end), budget.chunked_span(prompt, end));
  }
};

// Causal attention, softmax(scale q k^T) v per head, the softmax in f32. Stores the new keys and
// values into the cache. Every row attends to keys and values as the cache gives them back, rounded
// to its format (on CUDA a prompt's are then rounded to out's format, too). A prompt's queries and
// softmax weights are rounded to out's format on CUDA, and on CPUs whose linear layers multiply
// pairs of bf16 where out and cache are bf16. qkv: f32 [T, (heads + 2 kv_heads) * head_size]; out
// [T, heads * head_size], f32, bf16 or f16 (on the CPU for another device's linear layers). Prompts
// are tiled (Dao et al. 2022): the S x S matrix is never stored.
//
// A prompt may go through in chunks, in calls one after another: a chunk attends to the cached rows
// before it and to itself. Its rows have the same bits whatever the cuts, a single row included
// (which is no decode step: that sums in another order), on the CPU. On CUDA a row's arithmetic
// does not depend on the cuts either; the sums of its weights by key do, to within rounding. The
// same holds of a prompt behind a beginning.
//
// `window`: 0, or a query attends to the last `window` positions up to its own alone (Mistral's
// sliding window; at least 2). That is for prompts; a decode step attends to all rows that the
// budget keeps, which for such a layer is a budget of window - 1 recent rows. Chunks may lie in a
// ring of budget.chunk_ring slots then, at least window - 1 and the chunk's tokens. `scale`: 0 for
// 1 / sqrt(head size).
//
// With a limited budget (base/kv_budget.h) a prompt still attends to all of itself, but only the
// rows to keep stay: a whole prompt stores these alone; a prompt in chunks stores position p in
// slot p, and its last chunk moves the rows that stay to their slots. By score: each KV head keeps
// those rows whose softmax weights, summed over all queries (of all heads that share it), are
// highest; a decode step adds its weights, its own included, and then drops the lowest row outside
// the recent window. Of equal scores the later position stays. The budget's first positions have
// the score infinity from the moment on that they are kept beside the recent ones. At random
// (KvScore::kRandom): the same with numbers drawn by seed, layer, KV head and position as scores.
//
// Snap (KvScore::kSnapMean, kSnapMax): only the prompt's queries from budget.scored_from() on
// count, w of them with g heads that share the KV head. At the prompt's end the score of a position
// before them is the mean of its weights' sum over these queries and heads and those of its two
// neighbours on either side (of them, too; beyond the ends 0). kSnapMax: m = such a mean of their
// highest weights, and the score is w g max(m, mean of m over these positions). The positions of
// the window are kept before any other but the protected ones, of them the latest, and their scores
// are the sums, or w g times the highest, as they are. From then on scores grow as by score.
struct AttentionArgs {
  ConstMatrixView qkv;
  std::span<const AttentionItem> items;
  int64_t heads = 0;
  KvLayout kv;
  MatrixView out;
  int64_t window = 0;
  float scale = 0;
};
void attention(Stream& stream, const AttentionArgs& args);

}  // namespace spillway
