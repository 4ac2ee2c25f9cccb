// Scratch files for data spilled to disk (KV blocks, activations): private, never read by another
// process or after a restart.
//
// A spill file loses its name as soon as it is open, so the kernel frees its space when the file is
// closed or the process dies, however it dies. Only a crash between these two calls can leave a
// name behind, of an empty file; the next open() of the directory removes it. Several processes may
// share a directory.
//
// Several directories, on as many disks, are one place: a file is striped over them (File::stripe),
// an equal share in each.
//
// Thread rule: open() and create() from any thread; they block on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "offload/io/file.h"

namespace spillway {

// Bytes that this user may still write to the file system of `path`, which need not exist yet.
Result<uint64_t> free_disk_bytes(const std::string& path);

// Bytes of the largest file striped over these directories: what the fullest of their file systems
// has room for, so many times. Directories of one file system share its space. 0 without any.
Result<uint64_t> free_striped_bytes(const std::vector<std::string>& paths);

// One stripe is one part of a large transfer (IoOptions::part_bytes_max).
constexpr uint64_t kStripeBytes = uint64_t{2} << 20;

class SpillDirectory {
 public:
  // Makes each directory (0700) that is missing, and removes the names that crashed processes of
  // this user left in it; other files there are left alone, and a directory is not removed again.
  // REQUIRES: at least one.
  static Result<SpillDirectory> open(const std::vector<std::string>& paths);
  static Result<SpillDirectory> open(const std::string& path);

  const std::vector<std::string>& paths() const { return paths_; }

  // A new file of `bytes` bytes (0600), open for O_DIRECT reads and writes where the file system
  // has that, plain ones elsewhere. Its space is reserved where the file system supports that;
  // kCapacity names the missing bytes. Behind them lie `later_bytes` whose space is taken when they
  // are written. File::path() is its former name. REQUIRES: bytes + later_bytes > 0.
  Result<File> create(uint64_t bytes, uint64_t later_bytes = 0) const;

 private:
  explicit SpillDirectory(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  std::vector<std::string> paths_;
};

}  // namespace spillway
