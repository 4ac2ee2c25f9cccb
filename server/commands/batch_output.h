// From the journal to the output file, all or nothing. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/journal.h"

namespace spillway {

// Writes the journal's lines in input order to "PATH.tmp", syncs it, renames it to PATH and syncs
// the directory: whatever happens, PATH is the old file or the whole new one. Blocks for the disk.
Status write_output(const Journal& journal, const std::string& path);

// OK when PATH can become the output: its directory takes files, and PATH, if it exists, is a
// regular file other than `input`.
Status check_output(const std::string& path, const std::string& input);

// True when PATH is a finished output of the run `run_id`: its last line is line `last_row`'s.
bool is_output_of(const std::string& path, const std::string& run_id, int64_t last_row);

}  // namespace spillway
