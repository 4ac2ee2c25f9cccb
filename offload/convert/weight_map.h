// Maps checkpoint tensors to weights: the names and shapes that the config requires, checked
// against those that exist. Pure function, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
#include "kernels/base/rank_shape.h"
#include "kernels/base/status.h"
#include "kernels/base/weights.h"
#include "offload/convert/checkpoint.h"
#include "offload/convert/family.h"

namespace spillway {

struct MappedPart {
  uint32_t tensor = 0;  // Index into Checkpoint::tensors().
  int64_t first_row = 0;
  int64_t rows = 0;
};

// A weight's parts, stacked by rows. All have one format and `row_elements` numbers per row; a
// vector is a column of rows of one number.
struct MappedWeight {
  std::vector<MappedPart> parts;
  DType format = DType::kF32;
  int64_t row_elements = 0;
  // The quantised format that keeps the codes of all parts, where some part has blocks
  // (StoredTensor::blocks).
  std::optional<Format> of_blocks;
};

struct WeightMap {
  std::vector<MappedWeight> weights;  // In the order of weight_specs(shape).

  // Tied weights written out twice: these two must hold the same bytes.
  struct Copy {
    uint32_t tensor = 0;
    uint32_t of = 0;
  };
  std::optional<Copy> head_copy;
};

// kInvalidArgument lists tensors that are missing, superfluous, of another shape or of a format
// that no weight may have.
Result<WeightMap> map_weights(const Family& family, const ModelShape& shape,
                              const Checkpoint& checkpoint);

// Some rows of a weight, in the order of `rows`; of a vector, some numbers. REQUIRES: it has them.
MappedWeight take_rows(const MappedWeight& weight, std::span<const RowSpan> rows);

// The formats of a packed file that keeps every number of the checkpoint.
//
// Plain numbers: one format, the common one of all matrices, else f32. Of a checkpoint with
// quantised blocks (GGUF), each matrix and table has the quantised format that keeps its codes,
// q4_1 where all its parts have codes of 4 bits and q8_1 otherwise: it computes with the numbers of
// the file in about the file's bytes. Numbers without such blocks beside them become q8_1, which
// moves them by a small part of what the blocks around them have lost already. `main` is the format
// of most bytes.
struct NaturalFormats {
  Format main = Format::kF32;
  std::vector<Format> of_weights;  // In the order of weight_specs(shape); empty: all are `main`
};
NaturalFormats natural_formats(const ModelShape& shape, const WeightMap& map);

}  // namespace spillway
