#include "offload/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

// One system call moves at most this much (Linux stops at 2 GiB - 4 KiB anyway).
constexpr size_t kCallBytesMax = size_t{1} << 30;

std::string range_text(uint64_t offset, size_t bytes) {
  return std::to_string(bytes) + " bytes at " + std::to_string(offset);
}

const char* kind_text(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode)) return "a character device";
  return "a block device";
}

Status not_regular(const std::string& path, mode_t mode) {
  return invalid_argument(path + " is " + kind_text(mode) + ", not a regular file");
}

constexpr int kLinksMax = 40;  // As Linux

Result<std::string> follow_links(const std::string& path) {
  std::filesystem::path place(path);
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(place, error); ++links) {
    if (links == kLinksMax) return io_error("follow the links of " + path, ELOOP);
    const std::filesystem::path target = std::filesystem::read_symlink(place, error);
    if (error) return io_error("follow the links of " + path, error.value());
    place = target.is_absolute() ? target : place.parent_path() / target;
  }
  return place.string();
}

// Writes all of `content` at the descriptor's position, for outputs that are open already or cannot
// be replaced.
Status write_through(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), std::min(content.size(), kCallBytesMax));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return io_error("write " + path, errno);
    content.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

// Whether `path` is this process's standard output ("/dev/stdout", "/dev/fd/1").
bool is_standard_output(const std::string& path) {
  struct stat named {};
  struct stat standard {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(STDOUT_FILENO, &standard) == 0 &&
         named.st_dev == standard.st_dev && named.st_ino == standard.st_ino;
}

}  // namespace

Result<File> File::open(const std::string& path, int flags, mode_t mode) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return io_error("open " + path, errno);
  return File(fd, path);
}

Result<File> File::open_regular(int directory, const std::string& name, std::string path) {
  // Opening a FIFO waits for a writer without O_NONBLOCK; the file's kind is known only once it is
  // open.
  const int fd = ::openat(directory, name.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 && errno == ENXIO) return not_regular(path, S_IFSOCK);
  if (fd < 0) return io_error("open " + path, errno);
  File file(fd, std::move(path));
  SPILLWAY_RETURN_IF_ERROR(file.stamp().status());
  return file;
}

Result<File> File::open_to_read(const std::string& path) {
  return open_regular(AT_FDCWD, path, path);
}

Result<File> File::open_in(const File& directory, const std::string& name) {
  return open_regular(directory.fd(), name, directory.path() + "/" + name);
}

File::File(File&& other) noexcept {
  *this = std::move(other);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(parts_, other.parts_);
  std::swap(stripe_bytes_, other.stripe_bytes_);
  return *this;
}

File File::stripe(std::vector<File> parts, uint64_t stripe_bytes) {
  SPILLWAY_CHECK(parts.size() > 1 && stripe_bytes > 0);
  File file;
  for (const File& part : parts) {
    SPILLWAY_CHECK(part.fd() >= 0);
    file.path_ += (file.path_.empty() ? "" : ",") + part.path();
  }
  file.parts_ = std::move(parts);
  file.stripe_bytes_ = stripe_bytes;
  return file;
}

uint64_t File::bytes_of_part(uint64_t bytes, size_t index, size_t count, uint64_t stripe_bytes) {
  const uint64_t row = count * stripe_bytes;  // A stripe of every part
  const uint64_t rest = bytes % row, before = index * stripe_bytes;
  return bytes / row * stripe_bytes + std::min(stripe_bytes, rest - std::min(rest, before));
}

File::Place File::place(uint64_t offset, size_t bytes) const {
  if (!striped()) return {this, offset, bytes};
  const uint64_t stripe = offset / stripe_bytes_, in_stripe = offset % stripe_bytes_;
  return {&parts_[stripe % parts_.size()], stripe / parts_.size() * stripe_bytes_ + in_stripe,
          static_cast<size_t>(std::min<uint64_t>(bytes, stripe_bytes_ - in_stripe))};
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<FileStamp> File::stamp() const {
  if (striped()) {
    FileStamp all;
    for (const File& part : parts_) {
      SPILLWAY_ASSIGN_OR_RETURN(const FileStamp one, part.stamp());
      all.bytes += one.bytes;
      all.modified_ns = std::max(all.modified_ns, one.modified_ns);
    }
    return all;
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return io_error("stat " + path_, errno);
  if (!S_ISREG(info.st_mode)) return not_regular(path_, info.st_mode);
  return FileStamp{static_cast<uint64_t>(info.st_size),
                   int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

Status File::read(uint64_t offset, std::span<std::byte> target) const {
  do {
    const Place there = place(offset, target.size());
    SPILLWAY_RETURN_IF_ERROR(there.file->read_here(there.offset, target.first(there.bytes)));
    offset += there.bytes;
    target = target.subspan(there.bytes);
  } while (!target.empty());
  return {};
}

Status File::write(uint64_t offset, std::span<const std::byte> source) const {
  do {
    const Place there = place(offset, source.size());
    SPILLWAY_RETURN_IF_ERROR(there.file->write_here(there.offset, source.first(there.bytes)));
    offset += there.bytes;
    source = source.subspan(there.bytes);
  } while (!source.empty());
  return {};
}

Status File::read_here(uint64_t offset, std::span<std::byte> target) const {
  size_t done = 0;
  while (done < target.size()) {
    const size_t want = std::min(target.size() - done, kCallBytesMax);
    const ssize_t got = ::pread(fd_, target.data() + done, want, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("read " + path_ + ", " + range_text(offset, target.size()), errno);
    if (got == 0) {
      return corruption(path_ + " ends " + std::to_string(target.size() - done) +
                        " bytes early (reading " + range_text(offset, target.size()) + ")");
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Status File::write_here(uint64_t offset, std::span<const std::byte> source) const {
  size_t done = 0;
  while (done < source.size()) {
    const size_t want = std::min(source.size() - done, kCallBytesMax);
    const ssize_t put =
        ::pwrite(fd_, source.data() + done, want, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return io_error("write " + path_ + ", " + range_text(offset, source.size()), errno);
    }
    done += static_cast<size_t>(put);
  }
  return {};
}

Status File::sync() const {
  for (const File& part : parts_) SPILLWAY_RETURN_IF_ERROR(part.sync());
  if (striped()) return {};
  if (::fsync(fd_) != 0) return io_error("fsync " + path_, errno);
  return {};
}

Result<std::string> read_small_file(const File& file, uint64_t bytes_max) {
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  if (stamp.bytes > bytes_max) {
    return invalid_argument(file.path() + " has " + format_bytes(stamp.bytes) +
                            ", the limit for this file is " + format_bytes(bytes_max));
  }
  std::string text(stamp.bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<std::string> read_small_file(const std::string& path, uint64_t bytes_max) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open_to_read(path));
  return read_small_file(file, bytes_max);
}

Result<OutputPlace> output_place(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return invalid_argument(path + " is a directory");
    if (!S_ISREG(info.st_mode)) return OutputPlace{path, kind_text(info.st_mode)};
  } else if (errno != ENOENT) {
    return io_error("look at " + path, errno);
  }
  SPILLWAY_ASSIGN_OR_RETURN(std::string place, follow_links(path));
  return OutputPlace{std::move(place), ""};
}

Status replace_file(const std::string& named, std::string_view content) {
  if (is_standard_output(named)) return write_through(STDOUT_FILENO, named, content);
  SPILLWAY_ASSIGN_OR_RETURN(const OutputPlace place, output_place(named));
  const std::string& path = place.path;
  if (!place.special.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(const File file, File::open(path, O_WRONLY | O_NOCTTY));
    return write_through(file.fd(), path, content);
  }
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  const auto write = [&]() -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(const File file,
                              File::open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    SPILLWAY_RETURN_IF_ERROR(file.write(0, std::as_bytes(std::span(content))));
    SPILLWAY_RETURN_IF_ERROR(file.sync());
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return io_error("rename " + temporary + " to " + path, errno);
    }
    return sync_directory_of(path);
  };
  const Status status = write();
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status sync_directory_of(const std::string& path) {
  std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) parent = ".";
  SPILLWAY_ASSIGN_OR_RETURN(const File directory,
                            File::open(parent.string(), O_RDONLY | O_DIRECTORY));
  return directory.sync();
}

}  // namespace spillway
