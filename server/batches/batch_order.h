// The order in which a batch starts the lines of its input: those whose prompts begin alike are
// neighbours, so that the KV cache of what they have in common is still there from one to the next.
//
// Two lines are put together when their prompts have the first 256 bytes in common (about 64
// tokens; less is not worth it). Within such a group the same goes for longer and longer
// beginnings, up to the whole prompt. Groups are in the order of their first lines, and lines that
// are alike to the end in that of the input. So lines that share nothing stay where they are, and
// so do bad ones and those that are too long.
//
// The order follows from the input alone, and no result depends on it: seeds, duplicate custom_ids
// and the output go by the numbers of lines. A value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/completion.h"
#include "server/batches/batch_input.h"

namespace spillway {

// Memory in which the order is made, enough for half a million lines of 500 bytes; 32 bytes a line
// of it stay in use.
constexpr size_t kOrderBytesMax = size_t{64} << 20;

class BatchOrder {
 public:
  struct Line {
    uint64_t offset = 0;  // With the number for BatchInput::go_to()
    int64_t number = 0;
    bool repeats_id = false;  // A line before it in the input has the same custom_id.
    // Only while the order is made:
    uint16_t beginnings = 0;  // Those that have a hash
    uint32_t hashes = 0;      // Index of the first
    uint64_t key = 0;
  };

  // Reads the input once more and rewinds it. Errors as BatchInput::next(). Blocks for the disk.
  // REQUIRES: the input is at its first line, and has `rows` that are not blank.
  static Result<BatchOrder> of(BatchInput& input, int64_t rows, const ApiContext& context,
                               size_t bytes_max = kOrderBytesMax);

  // All lines that are not blank; empty when they are to run in the input's order, because that
  // could not be better or because there are too many.
  const std::vector<Line>& lines() const { return lines_; }

  bool too_many() const { return too_many_; }  // More lines than bytes_max is enough for

 private:
  std::vector<Line> lines_;
  bool too_many_ = false;
};

}  // namespace spillway
