// The input of a batch: JSON Lines, read once from front to back in bounded memory.
//
// A line ends with LF or CR LF; the last one may lack it. Blank lines are counted but skipped. A
// byte order mark at the start of the file is skipped. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kBatchLineBytesMax = size_t{1} << 20;

struct InputLine {
  int64_t number = 0;     // From 1, blank lines included
  std::string_view text;  // Without its end; empty when too long. Until the next next().
  bool too_long = false;  // More than kBatchLineBytesMax
};

class BatchInput {
 public:
  // kInvalidArgument when it is not a regular file (it is read twice: a pipe cannot be).
  static Result<BatchInput> open(const std::string& path);
  BatchInput(BatchInput&&) noexcept;
  BatchInput& operator=(BatchInput&&) noexcept;
  ~BatchInput();

  // The next line that is not blank; false at the end of the file. Blocks for the disk.
  Result<bool> next(InputLine* line);

  // Of all bytes read so far, 32 hex digits (XXH3-128).
  std::string hash() const;

 private:
  class Body;
  explicit BatchInput(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

// What a first pass over the file tells.
struct InputSummary {
  std::string hash;
  int64_t rows = 0;      // Lines that are not blank
  int64_t last_row = 0;  // Number of the last of them
};

Result<InputSummary> summarize(const std::string& path);

}  // namespace spillway
