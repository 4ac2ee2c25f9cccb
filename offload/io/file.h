// An open file: a descriptor with its name, and reads and writes that are complete or an error.
// Move-only; closes itself. Const methods from any thread (pread and pwrite share no position).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

  int fd() const { return fd_; }  // -1 when default-made.
  const std::string& path() const { return path_; }

  // kInvalidArgument when this is not a regular file (a pipe or a directory has no size).
  Result<FileStamp> stamp() const;

  // Fills all of `target` from `offset` on. Blocks. A file that ends early is kCorruption.
  Status read(uint64_t offset, std::span<std::byte> target) const;

  // Writes all of `source` at `offset`. Blocks.
  Status write(uint64_t offset, std::span<const std::byte> source) const;

  Status sync() const;  // fsync(2). Blocks.

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static Result<File> open_regular(int directory, const std::string& name, std::string path);

  int fd_ = -1;
  std::string path_;
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
