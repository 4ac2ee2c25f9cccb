// The cache folder, in which packed files are kept that were made from model directories and GGUF
// files: their names, who may make or remove them, and when they were last used.
//
// NAME.spill.lock lies beside NAME.spill. Whoever looks for the packed file, makes it or removes it
// holds that lock (flock(2)); its modification time is when the packed file was last used, because
// access times are switched off on many machines and the packed file's own would tell backups that
// it has changed. While it is made there is NAME.spill.partial, locked by its writer. While it is
// used, the packed file is locked as shared; who would remove it needs it exclusively.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "kernels/weight_layout.h"
#include "offload/io/file.h"

namespace spillway {

// The name of the packed file of a checkpoint, without the folder. `format` is what was asked for,
// such as "auto"; a kPanels16 file's name does not tell its layout.
std::string cached_file_name(const std::string& model_name, const std::string& fingerprint,
                             const std::string& format, MatrixLayout layout);

// What the lock of a packed file is called behind the file's name.
inline constexpr const char* kCacheLockSuffix = ".lock";

// Whether cached_file_name() makes such names. Files of any other name are not the cache's.
bool is_cached_file_name(std::string_view name);

// Takes flock(2) `operation` without waiting. False: another process has a lock that excludes it.
Result<bool> try_lock(const File& file, int operation);

// The lock of one packed file's place. Move-only; gives the lock back when it is destroyed.
class CacheLock {
 public:
  // `packed` is the packed file's path; its folder exists. While another process has the lock,
  // `waiting` is called about five times a second, and its error ends the wait. Blocks.
  static Result<CacheLock> take(const std::string& packed, const std::function<Status()>& waiting);

  // None: another process has it.
  static Result<std::optional<CacheLock>> try_take(const std::string& packed);

  // Removes the lock's file, with which the last use is forgotten.
  Status remove();

 private:
  explicit CacheLock(File file) : file_(std::move(file)) {}
  File file_;  // Closing it unlocks.
};

// A packed file in use: keeps others from removing it from the cache, and records the use at its
// begin and end. Any thread.
class ModelUse {
 public:
  // `packed`: any packed file; a use is recorded only of those in a cache. Null: it cannot be
  // opened, or someone is removing it. Waits up to two seconds for those who look who uses it.
  static std::shared_ptr<const ModelUse> begin(const std::string& packed);
  ~ModelUse();
  ModelUse(const ModelUse&) = delete;
  ModelUse& operator=(const ModelUse&) = delete;

 private:
  explicit ModelUse(File file) : file_(std::move(file)) {}
  void record() const;
  File file_;
};

// Nanoseconds since 1970 of the last use of a packed file in the cache: recorded, or its making.
Result<int64_t> last_use_ns(const std::string& packed);

}  // namespace spillway
