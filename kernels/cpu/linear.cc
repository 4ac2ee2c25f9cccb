// The linear layer on the CPU: our kernels for tiles of a product, and a fused epilogue.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_f32.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/strips.h"
#include "kernels/input_hadamard.h"

namespace spillway::cpu {

namespace {

// Bytes of packed activations per pass over the weights, unless kGemmRowsMax rows take more: bounds
// scratch memory, and keeps the data that all threads reread for each panel in near caches: a
// core's share of a server's L3 cache is small, and with 16 MiB, products of 2048 rows ran at 0.6
// to 0.75 of this rate (tests/bench/linear_bench). The weights are read once for each 96 rows or
// more, which takes at most a quarter of the memory bandwidth.
constexpr size_t kPackedBytesMax = size_t{4} << 20;

// Packing tasks per block of kGemmRowsMax rows.
constexpr int64_t kPackTasks = 4;

// Scratch memory is sized for a multiple of this: matrix units multiply this many rows.
constexpr uint64_t kRowsMultiple = 32;
static_assert(kRowsMultiple % kTileRows == 0);
static_assert(kGemmRowsMax % kRowsMultiple == 0);

// Matmul of float32 activations with weights that are widened to float32. The strip of row r begins
// at float r * columns.
class F32Matmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    return static_cast<size_t>(w.columns) * sizeof(float);
  }
  static int64_t strip_rows() { return gemm_strip_rows(); }

  F32Matmul(CpuContext&, std::byte* scratch, int64_t /*rows*/, const WeightMatrix& weight)
      : packed_(reinterpret_cast<float*>(scratch)), columns_(weight.columns) {}

  void pack(const ConstMatrixView& strip, int64_t first) const {
    pack_strip(reinterpret_cast<const float*>(strip.data), strip.stride, strip.rows, columns_,
               packed_ + first * columns_);
  }
  void multiply(int64_t row, int64_t rows, Format format, const std::byte* panels, bool /*again*/,
                float* tile) const {
    multiply_tile(packed_ + row * columns_, rows, columns_, format, panels, false, tile);
  }

 private:
  float* packed_;
  int64_t columns_;
};

// Matmul of bf16 activations with bf16 or quantised weights.
class Bf16Matmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    const int64_t sums = is_grouped(w.format) ? sum_groups(w.columns, group_of(w)) : 0;
    return static_cast<size_t>(pair_columns(w.columns)) * sizeof(uint32_t) +
           static_cast<size_t>(sums) * sizeof(float);
  }
  static int64_t strip_rows() { return kBf16StripRows; }

  Bf16Matmul(CpuContext&, std::byte* scratch, int64_t rows, const WeightMatrix& weight)
      : packed_{reinterpret_cast<uint32_t*>(scratch)}, columns_(weight.columns) {
    if (!is_grouped(weight.format)) return;
    packed_.sums = reinterpret_cast<float*>(packed_.bf16_pairs + rows * pair_columns(columns_));
    packed_.sum_group = group_of(weight);
  }

  void pack(const ConstMatrixView& strip, int64_t first) const {
    pack_bf16_strip(reinterpret_cast<const uint16_t*>(strip.data), strip.stride, strip.rows,
                    columns_, from(first));
  }
  void multiply(int64_t row, int64_t rows, Format format, const std::byte* panels, bool /*again*/,
                float* tile) const {
    multiply_bf16_tile(from(row), rows, columns_, format, panels, tile);
  }

 private:
  static int64_t group_of(const WeightMatrix& w) { return format_traits(w.format).group; }
  Bf16Strips from(int64_t row) const {
    Bf16Strips strip = packed_;
    strip.bf16_pairs += row * pair_columns(columns_);
    if (strip.sums != nullptr) strip.sums += row * sum_groups(columns_, strip.sum_group);
    return strip;
  }

  Bf16Strips packed_;
  int64_t columns_;
};

// Matmul of activations in 8 bits with weights of 4 or 8 bits.
class Int8Matmul {
 public:
  static constexpr bool kMultipliesHadamard = true;
  static constexpr int64_t kPartColumns = 1024;  // Ten microseconds of packing, for some 20 rows
  static size_t row_bytes(const WeightMatrix& w) {
    // Of any bodies: those of a pass are chosen by its rows.
    const auto quads = static_cast<size_t>(int8_quads(w.format, w.columns));
    return round_up(quads, size_t{kInt8QuadsMultiple}) * sizeof(uint32_t) +
           static_cast<size_t>(int8_scales(w.format, w.columns)) * sizeof(float);
  }
  int64_t strip_rows() const { return bodies_.strip_rows; }

  Int8Matmul(CpuContext& context, std::byte* scratch, int64_t rows, const WeightMatrix& weight)
      : context_(context),
        bodies_(int8_bodies(rows)),
        row_quads_(int8_row_quads(bodies_, weight.format, weight.columns)),
        packed_{reinterpret_cast<uint32_t*>(scratch),
                reinterpret_cast<float*>(reinterpret_cast<uint32_t*>(scratch) + rows * row_quads_)},
        rows_(rows),
        columns_(weight.columns),
        format_(weight.format),
        hadamard_(weight.hadamard) {}

  // Stretches of a strip are packed each by itself.
  void pack_part(const ConstMatrixView& strip, int64_t first, int64_t column, int64_t most) const {
    static_assert(kPartColumns % kStretch == 0);
    Int8Strips to = from(first);
    to.quads += column / 4 * strip.rows;
    to.scales += int8_scales(format_, column) * strip.rows;
    pack_int8_strip(
        bodies_, format_, strip.data + static_cast<size_t>(column) * dtype_bytes(strip.dtype),
        strip.dtype, strip.stride, strip.rows, std::min(most, columns_ - column), hadamard_, to);
  }
  // The matrix `at` of `count` that one task multiplies side by side.
  Int8Panels weights_of(const std::byte* panels, size_t at, size_t count) const {
    const size_t bytes = int8_scratch_bytes(bodies_, format_, rows_, columns_);
    std::byte* const scratch = context_.thread_scratch(count * bytes) + at * bytes;
    return int8_panels(bodies_, format_, rows_, panels, scratch);
  }
  // `again`: these panels have been multiplied by the rows before.
  void multiply(int64_t row, int64_t rows, Format format, const Int8Panels& panels, bool again,
                float* tile, const TileTaker& taker) const {
    Int8Panels here = panels;
    here.filled = again;
    multiply_int8_tile(bodies_, format, from(row), rows, columns_, here, tile, taker);
  }

 private:
  Int8Strips from(int64_t row) const {
    return {packed_.quads + row * row_quads_,
            packed_.scales + row * int8_scales(format_, columns_)};
  }

  CpuContext& context_;
  const Int8Bodies& bodies_;
  int64_t row_quads_;
  Int8Strips packed_;
  int64_t rows_, columns_;
  Format format_;
  bool hadamard_;
};

// Matmul of bf16 activations with bf16 weights, in kPanels64, by matrix units. Rows are dense;
// their length and number are padded with zeros.
class TileMatmul {
 public:
  static constexpr bool kMultipliesHadamard = false;
  static size_t row_bytes(const WeightMatrix& w) {
    return static_cast<size_t>(padded_columns(w.layout, w.format, w.columns)) *
           dtype_bytes(element_of(w.format));
  }
  static int64_t strip_rows() { return kGemmRowsMax / kPackTasks; }

  TileMatmul(CpuContext&, std::byte* scratch, int64_t rows, const WeightMatrix& weight)
      : packed_(scratch),
        rows_(rows),
        columns_(padded_columns(weight.layout, weight.format, weight.columns)),
        bytes_(static_cast<size_t>(weight.columns) * dtype_bytes(element_of(weight.format))),
        stride_(row_bytes(weight)) {}

  void pack(const ConstMatrixView& strip, int64_t first) const {
    const int64_t end = first + strip.rows;
    for (int64_t row = first; row < end; ++row) {
      std::byte* const to = packed_ + static_cast<size_t>(row) * stride_;
      std::memcpy(to, strip.row(row - first), bytes_);
      std::memset(to + bytes_, 0, stride_ - bytes_);
    }
    if (end < rows_) return;
    const auto all = round_up(static_cast<size_t>(end), kRowsMultiple);
    std::memset(packed_ + static_cast<size_t>(end) * stride_, 0,
                (all - static_cast<size_t>(end)) * stride_);
  }
  void multiply(int64_t row, int64_t rows, Format, const std::byte* panel, bool /*again*/,
                float* tile) const {
    const std::byte* from = packed_ + static_cast<size_t>(row) * stride_;
    multiply_tiles(reinterpret_cast<const uint16_t*>(from), rows, columns_, panel, tile);
  }

 private:
  std::byte* packed_;
  int64_t rows_, columns_;
  size_t bytes_, stride_;  // Bytes and elements of a row
};

// Rows of one pass: whole blocks of kGemmRowsMax, at least one.
int64_t rows_per_pass(size_t row_bytes) {
  const auto rows = static_cast<int64_t>(kPackedBytesMax / row_bytes);
  return std::max(kGemmRowsMax, rows / kGemmRowsMax * kGemmRowsMax);
}

// 64 columns of a product from `first` on, or as many as there are.
struct Columns {
  int64_t first = 0, count = 0;
  const std::byte* panels = nullptr;
};

Columns columns_from(const WeightMatrix& w, int64_t first) {
  const auto stride =
      static_cast<int64_t>(packed_bytes(w.layout, w.format, kGemmColumns, w.columns));
  const WeightSlab& slab = w.slabs[static_cast<size_t>(first / w.slab_rows)];
  const int64_t in_slab = first % w.slab_rows;
  return {first, std::min(kGemmColumns, slab.rows - in_slab),
          slab.data + in_slab / kGemmColumns * stride};
}

// What a product takes of the weights of 64 columns, for all rows of the pass: the panels as they
// are, unless it says otherwise. `at`, `count`: the place of these columns among those that a task
// multiplies side by side.
template <class Product>
auto weights_of(const Product& product, const Columns& columns, size_t at, size_t count) {
  if constexpr (requires { product.weights_of(columns.panels, at, count); }) {
    return product.weights_of(columns.panels, at, count);
  } else {
    return columns.panels;
  }
}

// tile[rows, 64] = rows of the pass from `row` on times `weights`; calls take(first row, rows,
// first column, columns) for each part of the tile as soon as it is finished.
template <class Product, class Weights, class Take>
void multiply_block(const Product& product, Format format, const Weights& weights, int64_t row,
                    int64_t rows, bool again, float* tile, const Take& take) {
  if constexpr (std::is_same_v<Product, Int8Matmul>) {
    product.multiply(row, rows, format, weights, again, tile, TileTaker::of(take));
  } else {
    product.multiply(row, rows, format, weights, again, tile);
    take(0, rows, 0, kGemmColumns);
  }
}

// Stores a finished part of the tile that `whole` would store.
void store_part(const TileStore& whole, int64_t row, int64_t rows, int64_t column,
                int64_t columns) {
  if (whole.columns <= column) return;
  const int64_t skipped = row * kGemmColumns + column;
  TileStore part = whole;
  part.tile += skipped;
  part.rows = rows;
  part.columns = std::min(columns, whole.columns - column);
  if (part.bias != nullptr) part.bias += column;
  if (part.gate != nullptr) part.gate += skipped;
  if (part.gate_bias != nullptr) part.gate_bias += column;
  part.out += static_cast<size_t>(row * whole.out_stride + column) * dtype_bytes(whole.out_dtype);
  store_tile(part);
}

// Multiplies the 64 columns from `column` on by the rows of the pass from `first_row` up to
// `end_row`.
template <class Product>
void multiply_columns(const LinearArgs& args, int64_t column, int64_t first_row, int64_t end_row,
                      const Product& product, const MatrixView& out) {
  alignas(64) float tile[kGemmRowsMax * kGemmColumns];
  const Columns columns = columns_from(args.weight, column);
  const auto weights = weights_of(product, columns, 0, 1);
  TileStore store{.tile = tile,
                  .columns = columns.count,
                  .bias = args.bias == nullptr ? nullptr : args.bias + column,
                  .activation = args.activation,
                  .scale = args.scale,
                  .accumulate = args.accumulate,
                  .out_dtype = out.dtype,
                  .out_stride = out.stride};
  for (int64_t row = first_row; row < end_row; row += kGemmRowsMax) {
    store.out = out.row(row) + static_cast<size_t>(column) * dtype_bytes(out.dtype);
    multiply_block(product, args.weight.format, weights, row, std::min(kGemmRowsMax, end_row - row),
                   row > first_row, tile, [&](auto... part) { store_part(store, part...); });
  }
}

// The same of a gated MLP's first layer: both halves of its outputs side by side. A block's gate
// waits in a near cache for what it is multiplied by.
template <class Product>
void multiply_columns(const GatedLinearArgs& args, int64_t column, int64_t first_row,
                      int64_t end_row, const Product& product, const MatrixView& out) {
  alignas(64) float gate_tile[kGemmRowsMax * kGemmColumns], tile[kGemmRowsMax * kGemmColumns];
  const Columns gate = columns_from(args.weight, column);
  const Columns up = columns_from(args.weight, out.columns + column);
  const auto gate_weights = weights_of(product, gate, 0, 2);
  const auto up_weights = weights_of(product, up, 1, 2);
  TileStore store{.tile = tile,
                  .columns = gate.count,
                  .bias = args.bias == nullptr ? nullptr : args.bias + up.first,
                  .activation = args.activation,
                  .gate = gate_tile,
                  .gate_bias = args.bias == nullptr ? nullptr : args.bias + gate.first,
                  .out_dtype = out.dtype,
                  .out_stride = out.stride};
  const Format format = args.weight.format;
  for (int64_t row = first_row; row < end_row; row += kGemmRowsMax) {
    const int64_t rows = std::min(kGemmRowsMax, end_row - row);
    const bool again = row > first_row;
    store.out = out.row(row) + static_cast<size_t>(column) * dtype_bytes(out.dtype);
    multiply_block(product, format, gate_weights, row, rows, again, gate_tile, [](auto...) {});
    multiply_block(product, format, up_weights, row, rows, again, tile,
                   [&](auto... part) { store_part(store, part...); });
  }
}

// The rows of a strip multiplied by Hadamard matrices, in their own type.
ConstMatrixView with_hadamard(CpuContext& context, const ConstMatrixView& strip) {
  const auto count = static_cast<size_t>(strip.columns);
  const size_t row_bytes = count * dtype_bytes(strip.dtype);
  const size_t numbers_bytes = round_up(count * sizeof(float), 64);  // A row in float32
  std::byte* const numbers =
      context.thread_scratch(numbers_bytes + static_cast<size_t>(strip.rows) * row_bytes);
  std::byte* const rows = numbers + numbers_bytes;
  for (int64_t row = 0; row < strip.rows; ++row) {
    convert_numbers(strip.dtype, strip.row(row), DType::kF32, numbers, count);
    multiply_by_hadamard(HadamardOf::kInputs, strip.columns, reinterpret_cast<float*>(numbers));
    convert_numbers(DType::kF32, numbers, strip.dtype, rows + static_cast<size_t>(row) * row_bytes,
                    count);
  }
  return dense_matrix(rows, strip.dtype, strip.rows, strip.columns);
}

// Whether strips can be packed in parts of so many columns, by several threads.
template <class Product>
constexpr bool kPacksParts = requires {
  Product::kPartColumns;
};

// Packs the strips of each block of kGemmRowsMax rows, as multiply() wants them.
template <class Product>
void pack_rows(CpuContext& context, const ConstMatrixView& in, bool hadamard,
               const Product& product) {
  const int64_t strip_rows = product.strip_rows();
  const int64_t block_strips = Strips(kGemmRowsMax, strip_rows).count();
  const int64_t task_strips = (block_strips + kPackTasks - 1) / kPackTasks;
  const int64_t whole = in.rows / kGemmRowsMax;
  const int64_t rest = Strips(in.rows % kGemmRowsMax, strip_rows).count();
  const int64_t tasks = whole * kPackTasks + (rest + task_strips - 1) / task_strips;
  int64_t parts = 1;
  if constexpr (kPacksParts<Product>) {
    constexpr int64_t kRowsMin = 8;  // Fewer are packed before a second thread has begun.
    if (in.rows >= kRowsMin)
      parts = (in.columns + Product::kPartColumns - 1) / Product::kPartColumns;
  }
  context.parallel_for(tasks * parts, [&](int64_t at) {
    const int64_t task = at / parts;
    const int64_t block = task / kPackTasks * kGemmRowsMax;
    const Strips strips(std::min(kGemmRowsMax, in.rows - block), strip_rows);
    const int64_t first = task % kPackTasks * task_strips;
    const int64_t end = std::min(strips.count(), first + task_strips);
    for (int64_t s = first; s < end; ++s) {
      const int64_t row = block + strips.first(s);
      ConstMatrixView strip = in;
      strip.data = in.row(row);
      strip.rows = strips.height(s);
      if constexpr (kPacksParts<Product>) {
        const int64_t column = at % parts * Product::kPartColumns;
        product.pack_part(strip, row, column, parts == 1 ? in.columns : Product::kPartColumns);
      } else {
        product.pack(hadamard ? with_hadamard(context, strip) : strip, row);
      }
    }
  });
}

// Rows that a task multiplies by 64 columns: all, unless there are too few columns for all threads
// to have work until the end. A row's bits do not depend on the rows beside it.
int64_t rows_per_task(int64_t tiles, int64_t rows, int64_t threads) {
  constexpr int64_t kTasksPerThread = 4;
  const int64_t blocks = (rows + kGemmRowsMax - 1) / kGemmRowsMax;
  const int64_t shares =
      std::clamp<int64_t>((kTasksPerThread * threads + tiles - 1) / tiles, 1, blocks);
  return (blocks + shares - 1) / shares * kGemmRowsMax;
}

// Args: LinearArgs or GatedLinearArgs, whose results go to `out`.
template <class Product, class Args>
void linear_panels(CpuContext& context, const Args& args, const MatrixView& out) {
  const WeightMatrix& w = args.weight;
  const size_t row_bytes = Product::row_bytes(w);
  const int64_t pass_rows = std::min(rows_per_pass(row_bytes), args.in.rows);
  const size_t packed_rows = round_up(static_cast<size_t>(pass_rows), kRowsMultiple);
  std::byte* const scratch = context.shared_scratch(packed_rows * row_bytes);
  for (int64_t first = 0; first < args.in.rows; first += pass_rows) {
    ConstMatrixView in = args.in;
    in.data = args.in.row(first);
    in.rows = std::min(pass_rows, args.in.rows - first);
    const MatrixView out_rows = out.slice_rows(first, in.rows);
    const Product product(context, scratch, in.rows, w);
    pack_rows(context, in, w.hadamard && !Product::kMultipliesHadamard, product);
    const int64_t tiles = (out.columns + kGemmColumns - 1) / kGemmColumns;
    const int64_t task_rows = rows_per_task(tiles, in.rows, context.threads());
    const int64_t shares = (in.rows + task_rows - 1) / task_rows;
    context.parallel_for(tiles * shares, [&](int64_t task) {
      const int64_t tile = task / shares, row = task % shares * task_rows;
      multiply_columns(args, tile * kGemmColumns, row, std::min(row + task_rows, in.rows), product,
                       out_rows);
    });
  }
}

template <class Args>
void choose_product(CpuContext& context, const Args& args, const MatrixView& out) {
  const WeightMatrix& w = args.weight;
  SPILLWAY_CHECK(w.slabs.size() == 1 || w.slab_rows % kPanelRowMultiple == 0);
  if (w.layout == MatrixLayout::kPanels64) {
    SPILLWAY_CHECK(context.tiles() && w.format == Format::kBF16 && args.in.dtype == DType::kBF16);
    return linear_panels<TileMatmul>(context, args, out);
  }
  SPILLWAY_CHECK(w.layout == MatrixLayout::kPanels16);
  if (context.int8(w.format, w.hadamard)) return linear_panels<Int8Matmul>(context, args, out);
  if (args.in.dtype == DType::kBF16) {
    SPILLWAY_CHECK(has_bf16_dot());
    return linear_panels<Bf16Matmul>(context, args, out);
  }
  SPILLWAY_CHECK(args.in.dtype == DType::kF32);
  linear_panels<F32Matmul>(context, args, out);
}

}  // namespace

bool has_whole_tiles(int64_t outputs) {
  return outputs % kGemmColumns == 0;
}

void run(CpuContext& context, const LinearArgs& args) {
  choose_product(context, args, args.out);
}

void run(CpuContext& context, const GatedLinearArgs& args) {
  const int64_t half = args.weight.rows / 2;
  SPILLWAY_CHECK(has_whole_tiles(half));
  choose_product(context, args,
                 dense_matrix(args.inner.data, args.inner.dtype, args.in.rows, half));
}

}  // namespace spillway::cpu
