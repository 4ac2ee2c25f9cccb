// An open file: a descriptor with its name, and reads and writes that are complete or an error.
// Several files, on as many disks, can be one (stripe()). Move-only; closes itself. Const methods
// from any thread (pread and pwrite share no position).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// Size and time, which tell one version of a file from the next.
struct FileStamp {
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class File {
 public:
  // `flags` as in open(2); O_CLOEXEC is added. kNotFound when there is no such file.
  static Result<File> open(const std::string& path, int flags, mode_t mode = 0644);

  // Opens a regular file to read. Anything else is kInvalidArgument, named in the message: a FIFO
  // is not waited for.
  static Result<File> open_to_read(const std::string& path);

  // Likewise opens `name` inside the open directory `directory`.
  static Result<File> open_in(const File& directory, const std::string& name);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // Makes one file of several open ones: stripes of `stripe_bytes` lie in each of them in turn, the
  // first in the first. Its path() is the parts' paths, joined by commas. REQUIRES: two parts at
  // least, none of them striped; stripe_bytes > 0.
  static File stripe(std::vector<File> parts, uint64_t stripe_bytes);

  // The bytes of part `index` of `count` in the first `bytes` bytes of a striped file.
  static uint64_t bytes_of_part(uint64_t bytes, size_t index, size_t count, uint64_t stripe_bytes);

  bool striped() const { return !parts_.empty(); }
  std::span<const File> parts() const { return parts_; }  // Empty unless striped

  // Where bytes from `offset` on lie: at most `bytes` of them, as many as follow one another there.
  struct Place {
    const File* file = nullptr;  // A part, or this file
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  Place place(uint64_t offset, size_t bytes) const;

  int fd() const { return fd_; }  // -1 when default-made or striped.
  const std::string& path() const { return path_; }

  // kInvalidArgument when this is not a regular file (a pipe or a directory has no size). Of a
  // striped one the bytes of all parts, and the latest time.
  Result<FileStamp> stamp() const;

  // Fills all of `target` from `offset` on. Blocks. A file that ends early is kCorruption.
  Status read(uint64_t offset, std::span<std::byte> target) const;

  // Writes all of `source` at `offset`. Blocks.
  Status write(uint64_t offset, std::span<const std::byte> source) const;

  Status sync() const;  // fsync(2). Blocks.

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static Result<File> open_regular(int directory, const std::string& name, std::string path);

  Status read_here(uint64_t offset, std::span<std::byte> target) const;
  Status write_here(uint64_t offset, std::span<const std::byte> source) const;

  int fd_ = -1;
  std::string path_;
  std::vector<File> parts_;
  uint64_t stripe_bytes_ = 0;
};

// Reads the whole of a small file; kInvalidArgument when it is larger than `bytes_max`.
Result<std::string> read_small_file(const File& file, uint64_t bytes_max);
Result<std::string> read_small_file(const std::string& path, uint64_t bytes_max);

// The place of an output that is written under a temporary name and then renamed.
struct OutputPlace {
  std::string path;     // With its symbolic links followed: the link stays, its target is replaced
  std::string special;  // "a FIFO", "a character device": exists, and no file may replace it
};
// kInvalidArgument: `path` is a directory, or its links go round in a circle.
Result<OutputPlace> output_place(const std::string& path);

// Makes `content` the whole of the file `path`: written under a temporary name beside it, synced,
// renamed, so that a reader sees the old file or the new one. A path that is no regular file (a
// device, a FIFO) or is this process's standard output is written to, not replaced. Blocks.
Status replace_file(const std::string& path, std::string_view content);

// fsync of the directory that holds `path`, so that a rename in it survives a power cut.
Status sync_directory_of(const std::string& path);

}  // namespace spillway
