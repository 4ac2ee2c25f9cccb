// Maps checkpoint tensors to weights: the names and shapes that the config requires, checked
// against those that exist. Pure function, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/model_shape.h"
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
  bool blocks = false;  // Some part is quantised in the checkpoint (StoredTensor::blocks)
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

// The format of a packed file that keeps every number of the checkpoint: the common format of all
// matrices, else f32. For a checkpoint with quantised blocks f16, in half of f32's bytes: rounding
// to f16 moves a number by at most an eighth of the error that a Q8_0 block has itself and a
// sixtieth of a 4-bit one's, where bf16 could move it by as much as Q8_0. q4 would be about the
// size of the file, but it is another quantisation with a loss of its own, which only the user can
// accept.
Format natural_format(const ModelShape& shape, const WeightMap& map);

}  // namespace spillway
