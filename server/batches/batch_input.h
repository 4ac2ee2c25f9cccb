// The input of a batch: JSON Lines, read in bounded memory, first from front to back and then
// again, in that order or line by line in another. The input is the file's contents when it was
// opened: later appends do not count, and bytes that are read again are compared with the first
// pass's hashes, 64 KiB at a time, before a line of them is used.
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
  std::string_view text;  // Without its end; empty when too long. Valid until the next next().
  bool too_long = false;  // More than kBatchLineBytesMax
  uint64_t offset = 0;    // In the file, of its first byte
};

class BatchInput {
 public:
  // kInvalidArgument when it is not a regular file (it is read twice: a pipe cannot be). A file
  // that is renamed or deleted after opening is still read.
  static Result<BatchInput> open(const std::string& path);
  BatchInput(BatchInput&&) noexcept;
  BatchInput& operator=(BatchInput&&) noexcept;
  ~BatchInput();

  // The next line that is not blank; false at the end. kInvalidArgument when the file has changed
  // since the first pass. Blocks for the disk.
  Result<bool> next(InputLine* line);

  // Goes back to the first line. REQUIRES: the first pass has reached the end.
  void rewind();

  // Goes to the line with this offset and number, which the next next() returns. Reads nothing.
  // REQUIRES: the first pass has reached the end, and next() has given a line with both.
  void go_to(uint64_t offset, int64_t number);

  // Hash of all bytes of the first pass so far, 32 hex digits (XXH3-128).
  std::string hash() const;

 private:
  class Body;
  explicit BatchInput(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

// Results of the first pass over the file.
struct InputSummary {
  std::string hash;
  int64_t rows = 0;      // Lines that are not blank
  int64_t last_row = 0;  // Number of the last non-blank line
};

// Reads the input to its end and rewinds it. REQUIRES: nothing was read yet.
Result<InputSummary> summarize(BatchInput& input);

}  // namespace spillway
