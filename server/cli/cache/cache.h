// `spillway cache`: lists the packed models of the cache folder and removes unused ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/status.h"
#include "server/cli/flags/command_line.h"

namespace spillway {

struct CacheFlags {
  std::string action = {};                 // "list", "prune"; empty: prune if a limit is given
  std::optional<uint64_t> bytes_max = {};  // --max-size
  std::optional<double> unused_seconds_max = {};  // --older-than
  bool dry_run = false;
  bool json = false;
};

// Whether the flags go together: kInvalidArgument names what does not.
Status validate(const CacheFlags& flags);

// Lists or prunes the folder `directory`; the report goes to stdout. kIoError: a file could not be
// removed; kCapacity: what is in use takes more than --max-size; everything else was done then.
// Blocks.
Status run_cache(const CacheFlags& flags, const std::string& directory);

Command cache_command();

}  // namespace spillway
