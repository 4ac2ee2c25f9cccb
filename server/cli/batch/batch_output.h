// Writes the output file from the journal, all or nothing, and reads an output back into a journal.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "scheduler/journal.h"

namespace spillway {

// Calls `write` with a function that adds a line (without its newline) to "PATH.TAG.tmp", then
// syncs that file, renames it to PATH and syncs the directory: at any failure PATH is the old file
// or the whole new one. `tag` is the writer's own, so that no other file is overwritten. Blocks for
// the disk.
using AddLine = std::function<Status(std::string_view line)>;
Status write_lines(const std::string& path, const std::string& tag,
                   const std::function<Status(const AddLine& add)>& write);

// Likewise the journal's lines in input order.
Status write_output(const Journal& journal, const std::string& path, const std::string& tag);

// The file that `path` refers to: the target of a symbolic link, so that the file behind it is
// written and the link stays; else `path` itself.
std::string output_target(const std::string& path);

// OK when PATH can become the output: its directory is writable, and PATH, if it exists, is a
// regular file other than `input`.
Status check_output(const std::string& path, const std::string& input);

// The file found at the output's path, as seen by the run `run_id`.
struct OutputFound {
  bool exists = false;
  bool whole = false;  // The finished output of this very run
  int64_t failed = 0;  // Its lines with an error, if it is whole
};
Result<OutputFound> find_output(const std::string& path, const std::string& run_id, int64_t rows,
                                int64_t last_row);

// Puts the error-free lines of this run's output back into an empty journal, so that the others can
// run again. Commits once, at the end.
Status read_back(const std::string& path, Journal& journal);

}  // namespace spillway
