// The linear layers on the CPU: inputs are normed and packed strip by strip, tasks multiply as many
// rows as they can by the weights of 64 outputs, or of several times 64 (kernels/cpu/products.h),
// and what they finish goes through the epilogue (kernels/cpu/epilogue.h) to where it belongs.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/convert_numbers.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"

namespace spillway::cpu {

namespace {

// Tasks of a parallel loop per thread, so that all have work until its end.
constexpr int64_t kTasksPerThread = 4;

// Rows of one pass: whole blocks of kGemmRowsMax, at least one.
int64_t rows_per_pass(size_t row_bytes) {
  const auto rows = static_cast<int64_t>(kPackedBytesMax / row_bytes);
  return std::max(kGemmRowsMax, rows / kGemmRowsMax * kGemmRowsMax);
}

// What goes into a layer, [rows, columns] in `type`, and how it comes about.
struct LayerInput {
  ConstMatrixView in;    // As it lies; the norm's float32 input where there is a norm
  const NormArgs* norm;  // Null: none
  DType type;            // After the norm

  LayerInput rows(int64_t first, int64_t count) const {
    LayerInput part = *this;
    part.in.data = in.row(first);
    part.in.rows = count;
    return part;
  }
};

LayerInput input_of(const ConstMatrixView& in, const std::optional<NormArgs>& norm) {
  if (!norm) return {in, nullptr, in.dtype};
  return {norm->in, &*norm, in.dtype};
}

// Columns [column, column + width) of a strip as they are packed: where they lie or, normed and
// multiplied by Hadamard matrices, in the calling worker's scratch memory.
ConstMatrixView prepared(CpuContext& context, const LayerInput& strip, bool hadamard,
                         int64_t column, int64_t width) {
  ConstMatrixView part = strip.in;
  part.data += static_cast<size_t>(column) * dtype_bytes(part.dtype);
  part.columns = width;
  if (strip.norm == nullptr && !hadamard) return part;
  SPILLWAY_CHECK(part.rows <= kStripRowsMax);
  const auto count = static_cast<size_t>(width);
  const size_t row_bytes = count * dtype_bytes(strip.type);
  const size_t numbers_bytes = round_up(count * sizeof(float), 64);  // A row in float32
  std::byte* const memory =
      context.thread_scratch(numbers_bytes + static_cast<size_t>(part.rows) * row_bytes);
  auto* const numbers = reinterpret_cast<float*>(memory);
  std::byte* const rows = memory + numbers_bytes;
  for (int64_t row = 0; row < part.rows; ++row) {
    std::byte* const to = rows + static_cast<size_t>(row) * row_bytes;
    if (!hadamard) {
      normalize_part(*strip.norm, strip.in.row(row), column, width, strip.type, numbers, to);
      continue;
    }
    if (strip.norm == nullptr) {
      convert_numbers(part.dtype, part.row(row), DType::kF32, memory, count);
    } else {
      normalize_part(*strip.norm, strip.in.row(row), column, width, DType::kF32, numbers, memory);
    }
    multiply_by_hadamard(HadamardOf::kInputs, width, numbers);
    convert_numbers(DType::kF32, memory, strip.type, to, count);
  }
  return dense_matrix(rows, strip.type, part.rows, width);
}

// Columns of each of up to `parts` parts, whole stretches.
int64_t columns_per_part(int64_t columns, int64_t parts) {
  if (parts <= 1) return columns;
  return (columns + parts * kStretch - 1) / (parts * kStretch) * kStretch;
}

// Packs the strips of each block of kGemmRowsMax rows, as multiply() wants them.
template <class Product>
void pack_rows(CpuContext& context, const LayerInput& input, bool hadamard,
               const Product& product) {
  const int64_t rows = input.in.rows, columns = input.in.columns;
  const int64_t strip_rows = product.strip_rows();
  const int64_t block_strips = Strips(kGemmRowsMax, strip_rows).count();
  const int64_t task_strips = (block_strips + kPackTasks - 1) / kPackTasks;
  const int64_t whole = rows / kGemmRowsMax;
  const int64_t rest = Strips(rows % kGemmRowsMax, strip_rows).count();
  const int64_t tasks = whole * kPackTasks + (rest + task_strips - 1) / task_strips;
  // Few strips are cut by columns, too, unless they are packed before a second thread has begun. A
  // norm looks at all of a row in each part.
  constexpr int64_t kPartRowsMin = 8;
  const int64_t wanted = rows < kPartRowsMin ? 1 : 2 * context.threads() / tasks;
  const int64_t width = columns_per_part(columns, wanted);
  const int64_t parts = (columns + width - 1) / width;
  context.parallel_for(tasks * parts, [&](int64_t at) {
    const int64_t task = at / parts;
    const int64_t block = task / kPackTasks * kGemmRowsMax;
    const Strips strips(std::min(kGemmRowsMax, rows - block), strip_rows);
    const int64_t first = task % kPackTasks * task_strips;
    const int64_t end = std::min(strips.count(), first + task_strips);
    const int64_t column = at % parts * width;
    const int64_t count = std::min(width, columns - column);
    for (int64_t s = first; s < end; ++s) {
      const int64_t row = block + strips.first(s);
      const LayerInput strip = input.rows(row, strips.height(s));
      product.pack(prepared(context, strip, hadamard, column, count), row, column);
    }
  });
}

// 64 columns of a product from `first` on, or as many as there are.
struct Columns {
  int64_t first = 0, count = 0;
  const std::byte* packed = nullptr;
};

Columns columns_from(const WeightMatrix& w, int64_t first) {
  const auto stride =
      static_cast<int64_t>(packed_bytes(w.layout, w.format, kGemmColumns, w.columns));
  const WeightSlab& slab = w.slabs[static_cast<size_t>(first / w.slab_rows)];
  const int64_t in_slab = first % w.slab_rows;
  return {first, std::min(kGemmColumns, slab.rows - in_slab),
          slab.data + in_slab / kGemmColumns * stride};
}

// Bytes of memory that a product needs for the weights of 64 columns, and these as it takes them
// for all rows: as they lie, unless it says otherwise.
template <class Product>
size_t panels_bytes(const Product& product) {
  if constexpr (requires { product.panels_bytes(); }) {
    return product.panels_bytes();
  } else {
    return 0;
  }
}
template <class Product>
auto panels_of(const Product& product, const Columns& columns, std::byte* memory) {
  if constexpr (requires { product.panels(columns.packed, memory); }) {
    return product.panels(columns.packed, memory);
  } else {
    return columns.packed;
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

// Where `whole` will be stored.
TileOutputs outputs_of(const TileStore& whole) {
  const auto element_bytes = static_cast<int64_t>(dtype_bytes(whole.out_dtype));
  return {whole.out, whole.out_stride * element_bytes, element_bytes, whole.columns};
}

// A block of rows of the pass, up to kGemmRowsMax.
struct RowBlock {
  int64_t first, count;
  bool again;  // The task has multiplied others before.
};

// Multiplies a block by the 64 columns from `column` on, whose panels may take `memory`.
template <class Product>
void multiply_columns(const LinearArgs& args, int64_t column, const RowBlock& block,
                      const Product& product, std::byte* memory, const MatrixView& out) {
  alignas(64) float tile[kGemmRowsMax * kGemmColumns];
  const Columns columns = columns_from(args.weight, column);
  const auto panels = panels_of(product, columns, memory);
  const TileStore store{
      .tile = tile,
      .columns = columns.count,
      .bias = args.bias == nullptr ? nullptr : args.bias + column,
      .activation = args.activation,
      .scale = args.scale,
      .accumulate = args.accumulate,
      .out = out.row(block.first) + static_cast<size_t>(column) * dtype_bytes(out.dtype),
      .out_dtype = out.dtype,
      .out_stride = out.stride};
  const auto take = [&](auto... part) { store_part(store, part...); };
  product.multiply(block.first, block.count, args.weight.format, panels, block.again, tile,
                   TileTaker::of(take, outputs_of(store)));
}

// The same of a gated MLP's first layer: both halves of its outputs side by side. A block's gate
// waits in a near cache for what it is multiplied by.
template <class Product>
void multiply_columns(const GatedLinearArgs& args, int64_t column, const RowBlock& block,
                      const Product& product, std::byte* memory, const MatrixView& out) {
  alignas(64) float gate_tile[kGemmRowsMax * kGemmColumns], tile[kGemmRowsMax * kGemmColumns];
  const Columns gate = columns_from(args.weight, column);
  const Columns up = columns_from(args.weight, args.weight.rows / 2 + column);
  const auto gate_panels = panels_of(product, gate, memory);
  const auto up_panels = panels_of(product, up, memory + panels_bytes(product));
  const TileStore store{
      .tile = tile,
      .columns = gate.count,
      .bias = args.bias == nullptr ? nullptr : args.bias + up.first,
      .activation = args.activation,
      .gate = gate_tile,
      .gate_bias = args.bias == nullptr ? nullptr : args.bias + gate.first,
      .out = out.row(block.first) + static_cast<size_t>(column) * dtype_bytes(out.dtype),
      .out_dtype = out.dtype,
      .out_stride = out.stride};
  const Format format = args.weight.format;
  const auto wait = [](auto...) {};
  product.multiply(block.first, block.count, format, gate_panels, block.again, gate_tile,
                   TileTaker::of(wait));
  const auto take = [&](auto... part) { store_part(store, part...); };
  product.multiply(block.first, block.count, format, up_panels, block.again, tile,
                   TileTaker::of(take, outputs_of(store)));
}

// How many times 64 columns of weights a task multiplies for each 64 outputs.
template <class Args>
constexpr int64_t kWeightsPerOutput = std::is_same_v<Args, GatedLinearArgs> ? 2 : 1;

// How a task goes through the rows of a pass: blocks of them, each multiplied by all tiles of 64
// outputs of the task before the next one.
struct TaskShape {
  int64_t tiles = 1, block_rows = kGemmRowsMax;
};

// bf16 products by matrix units are so fast that activations would have to come from the last cache
// at more than it gives. With several tiles, whose weights stay in a core's L2 cache for all
// blocks, each block comes from there once for all of them. There is no gain where activations stay
// there.
template <class Args, class Product>
TaskShape task_shape(const Product& product, int64_t tiles, int64_t rows, int64_t threads) {
  if constexpr (requires { product.cached_row_bytes(); }) {
    const int64_t row_bytes = product.cached_row_bytes();
    const int64_t most = kCachedBytes / (kWeightsPerOutput<Args> * kGemmColumns * row_bytes);
    const int64_t together = std::min(most, tiles / (kTasksPerThread * threads));
    if (rows * row_bytes > kCachedBytes && together > 1) return {together, Product::kBlockRows};
  }
  return {};
}

// Rows that a task multiplies by 64 columns: all, unless there are too few columns for all threads
// to have work until the end. A row's bits do not depend on the rows beside it.
int64_t rows_per_task(int64_t tiles, int64_t rows, int64_t threads) {
  const int64_t blocks = (rows + kGemmRowsMax - 1) / kGemmRowsMax;
  const int64_t shares =
      std::clamp<int64_t>((kTasksPerThread * threads + tiles - 1) / tiles, 1, blocks);
  return (blocks + shares - 1) / shares * kGemmRowsMax;
}

// Args: LinearArgs or GatedLinearArgs, whose results go to `out`.
template <class Product, class Args>
void linear_panels(CpuContext& context, const Args& args, const MatrixView& out) {
  const WeightMatrix& w = args.weight;
  const LayerInput input = input_of(args.in, args.norm);
  const size_t row_bytes = Product::row_bytes(w);
  const int64_t pass_rows = std::min(rows_per_pass(row_bytes), args.in.rows);
  const size_t packed_rows = round_up(static_cast<size_t>(pass_rows), kRowsMultiple);
  std::byte* const memory = context.shared_scratch(packed_rows * row_bytes);
  for (int64_t first = 0; first < args.in.rows; first += pass_rows) {
    const int64_t rows = std::min(pass_rows, args.in.rows - first);
    const Product product(memory, rows, w);
    pack_rows(context, input.rows(first, rows), w.hadamard && !Product::kMultipliesHadamard,
              product);
    const MatrixView out_rows = out.slice_rows(first, rows);
    const int64_t tiles = (out.columns + kGemmColumns - 1) / kGemmColumns;
    const TaskShape shape = task_shape<Args>(product, tiles, rows, context.threads());
    const int64_t task_rows = rows_per_task(tiles, rows, context.threads());
    const int64_t shares = (rows + task_rows - 1) / task_rows;
    const size_t memory_bytes =
        static_cast<size_t>(kWeightsPerOutput<Args>) * panels_bytes(product);
    SPILLWAY_CHECK(shape.tiles == 1 || memory_bytes == 0);  // Each tile would need its own.
    const int64_t groups = (tiles + shape.tiles - 1) / shape.tiles;
    context.parallel_for(groups * shares, [&](int64_t task) {
      const int64_t first_tile = task / shares * shape.tiles, first_row = task % shares * task_rows;
      const int64_t end_tile = std::min(first_tile + shape.tiles, tiles);
      const int64_t end_row = std::min(first_row + task_rows, rows);
      std::byte* const panels = context.thread_scratch(memory_bytes);
      for (int64_t row = first_row; row < end_row; row += shape.block_rows) {
        const RowBlock block{row, std::min(shape.block_rows, end_row - row), row > first_row};
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
          multiply_columns(args, tile * kGemmColumns, block, product, panels, out_rows);
        }
      }
    });
  }
}

template <class Args>
void choose_product(CpuContext& context, const Args& args, const MatrixView& out) {
  const WeightMatrix& w = args.weight;
  SPILLWAY_CHECK(w.slabs.size() == 1 || w.slab_rows % kPanelRowMultiple == 0);
  SPILLWAY_CHECK(w.layout == MatrixLayout::kPanels16);
  if (context.tiles() && w.format == Format::kBF16) {
    SPILLWAY_CHECK(args.in.dtype == DType::kBF16);
    return linear_panels<TileMatmul>(context, args, out);
  }
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
