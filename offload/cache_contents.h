// What lies in the cache folder, and removing what is not used. Files whose names are not the
// cache's are not looked at. Several processes may use the folder meanwhile. Any thread; blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/format.h"
#include "kernels/base/status.h"
#include "kernels/weight_layout.h"

namespace spillway {

// What became of the checkpoint that a packed file was made from.
enum class OriginState : uint8_t {
  kUnknown,    // An older version made the file, or the checkpoint cannot be read
  kUnchanged,  // The file is used again for it
  kChanged,    // Another file is made for it: this one is not used again
  kGone,
};

struct CachedModel {
  std::string path;
  uint64_t bytes = 0;
  int64_t used_ns = 0;      // last_use_ns()
  bool in_use = false;      // By a running process
  std::string damage = {};  // Why it cannot be read; then the rest is not known
  std::string name = {};    // The model's, of its shape
  Format format = Format::kF32;
  MatrixLayout layout = MatrixLayout::kRows;
  std::string origin = {};  // ModelFileTable::origin
  OriginState origin_state = OriginState::kUnknown;
};

// A packed file that is not whole: one that is being written, or an interrupted conversion's.
struct PartialFile {
  std::string path;
  uint64_t bytes = 0;
  bool in_use = false;  // A process is writing it
};

// A hardware profile (scheduler/planning/hardware_cache.h): small, and not removed.
struct CachedProfile {
  std::string path;
  uint64_t bytes = 0;
};

struct CacheContents {
  std::string directory;
  std::vector<CachedModel> models;  // The least recently used first
  std::vector<PartialFile> partial;
  std::vector<CachedProfile> profiles;
  uint64_t bytes() const;  // Of packed files, whole or not
};

// A folder that does not exist is empty. kIoError: it cannot be read. With `look_at_origins` the
// checkpoints' fingerprints are compared, which reads a few MiB of each of their files.
Result<CacheContents> list_cache(const std::string& directory, bool look_at_origins);

struct CacheLimits {
  std::optional<uint64_t> bytes_max = {};  // Of all packed files together
  std::optional<double> unused_seconds_max = {};
};

struct RemovedFile {
  std::string path;
  uint64_t bytes = 0;
};

struct PruneResult {
  std::vector<RemovedFile> removed;
  std::vector<std::string> in_use;  // Would have been removed, but a process uses them
  std::vector<Status> failures;     // Could not be removed
  uint64_t bytes_left = 0;
};

// Removes what interrupted conversions left; packed files that were not used for longer than
// `unused_seconds_max`; and, the least recently used first, as many as must go until the others
// are within `bytes_max`. Never one that a process uses. `now_ns`: since 1970. With `dry_run` says
// what would go.
PruneResult prune_cache(const CacheContents& contents, const CacheLimits& limits, int64_t now_ns,
                        bool dry_run);

}  // namespace spillway
