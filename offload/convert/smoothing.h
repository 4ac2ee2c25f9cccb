// Smoothing (SmoothQuant, arXiv 2211.10438): some channels of what goes into a matrix product are
// far larger than others, and the weights that they meet far smaller. With one scale for all inputs
// of an output these weights would lose their bits (and such activations would take them from all
// others). So a channel is divided by a factor s and its column of the matrix multiplied by it,
// s = sqrt(max |a| / max |w|), which balances both. What divides is a weight in front of the
// product, so the model computes the same function, exactly but for rounding:
//
//   norm -> queries, keys, values; norm -> MLP       the norm's weight and bias
//   values -> attention's output projection          the values' rows and bias; query heads that
//                                                     share a value head share its factors
//   MLP up -> MLP down                               the rows and bias of up: behind ReLU, which is
//                                                     positively homogeneous, and in gated MLPs,
//                                                     where the gate's rows stay
//
// A pair that a model's layers do not have so (norms behind the sublayers, other activations) stays
// as it is. Pure functions but for reading the checkpoint; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "kernels/base/weights.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/weight_map.h"

namespace spillway {

// The largest magnitudes of what goes into a layer's four products, by channel: [inputs] each.
struct InputMaxima {
  std::vector<float> qkv, attention_out, mlp_up, mlp_down;

  // REQUIRES: `weight` is that of one of the four.
  std::vector<float>& of(WeightRole weight);
};

// InputMaxima of zeros for each layer of the model.
std::vector<InputMaxima> no_maxima(const ModelShape& shape);

// Takes in rows that go into a product: `values` is [rows, channels of `maxima`]. NaN and infinity
// do not count.
void note_inputs(std::span<const float> values, std::vector<float>& maxima);

// Factors of a weight's rows (of a vector: of its elements) and columns; empty: all are 1.
struct WeightFactors {
  std::vector<float> rows, columns;
  bool none() const { return rows.empty() && columns.empty(); }
};

// The factors that balance `inputs` (by layer) and `columns`, the largest magnitudes of the
// matrices' columns (by layer, in the places of their inputs); for each of weight_specs(shape).
// REQUIRES: both have the sizes of no_maxima(shape).
std::vector<WeightFactors> smoothing_factors(const ModelShape& shape,
                                             std::span<const InputMaxima> inputs,
                                             std::span<const InputMaxima> columns);

// The largest magnitudes of the columns of a checkpoint's matrices, as smoothing_factors() wants
// them. Reads all of them, on `threads` threads; `keep_going`: as tick of run_tasks(). Blocks.
Result<std::vector<InputMaxima>> column_maxima(const ModelShape& shape,
                                               const Checkpoint& checkpoint, const WeightMap& map,
                                               unsigned threads,
                                               const std::function<bool()>& keep_going);

// Multiplies rows [first_row, first_row + rows) of a weight, `values` [rows, columns].
void apply_factors(const WeightFactors& factors, int64_t first_row, int64_t rows, int64_t columns,
                   float* values);

}  // namespace spillway
