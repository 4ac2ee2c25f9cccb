// Makes one output of the two files that a server has of a batch, its answers and its errors: a
// line for each line of the input, in its order, as a batch on this machine writes it. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

struct MergedResults {
  int64_t answers = 0;
  int64_t errors = 0;
};

// Merges the files `answers` and `errors` (an empty path: there is none) into `target`: written as
// `temporary` beside it, synced and renamed, so that `target` is the old file or the whole new one.
// The order is that of the line numbers with which the ids of the lines end; lines without one, of
// another server, come last and stay in the order in which they are. Takes 24 bytes of memory a
// line beside the longest line. Blocks for the disk; at an error `temporary` is removed.
Result<MergedResults> merge_results(const std::string& answers, const std::string& errors,
                                    const std::string& temporary, const std::string& target);

// The line number in {"id":"batch_req_1f0c..._17",...}; 0: there is none.
int64_t line_number_of(std::string_view line);

}  // namespace spillway
