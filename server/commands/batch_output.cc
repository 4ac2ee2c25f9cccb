#include "server/commands/batch_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace spillway {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::string directory_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A file that is written from front to back; closes itself.
class Writer {
 public:
  explicit Writer(std::string path) : path_(std::move(path)) {}
  ~Writer() {
    if (fd_ >= 0) ::close(fd_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Status open() {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd_ >= 0 ? Status() : io_error("create " + path_, errno);
  }

  Status add_line(std::string_view line) {
    buffer_ += line;
    buffer_ += '\n';
    return buffer_.size() < kBufferBytes ? Status() : flush();
  }

  Status sync() {
    SPILLWAY_RETURN_IF_ERROR(flush());
    return ::fsync(fd_) == 0 ? Status() : io_error("sync " + path_, errno);
  }

 private:
  Status flush() {
    size_t written = 0;
    while (written < buffer_.size()) {
      const ssize_t count = ::write(fd_, buffer_.data() + written, buffer_.size() - written);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return io_error("write " + path_, errno);
      written += static_cast<size_t>(count);
    }
    buffer_.clear();
    return {};
  }

  std::string path_;
  int fd_ = -1;
  std::string buffer_;
};

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error("open " + path, errno);
  const int code = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return code == 0 ? Status() : io_error("sync " + path, error);
}

}  // namespace

Status write_output(const Journal& journal, const std::string& path) {
  const std::string temporary = path + ".tmp";
  {
    Writer writer(temporary);
    SPILLWAY_RETURN_IF_ERROR(writer.open());
    SPILLWAY_RETURN_IF_ERROR(
        journal.for_each([&](int64_t, std::string_view line) { return writer.add_line(line); }));
    SPILLWAY_RETURN_IF_ERROR(writer.sync());
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error("rename to " + path, errno);
  return sync_directory(directory_of(path));
}

Status check_output(const std::string& path, const std::string& input) {
  struct stat output_info {};
  struct stat input_info {};
  if (::stat(path.c_str(), &output_info) == 0) {
    if (!S_ISREG(output_info.st_mode)) {
      return invalid_argument("--output " + path + ": exists and is not a regular file");
    }
    if (::stat(input.c_str(), &input_info) == 0 && input_info.st_dev == output_info.st_dev &&
        input_info.st_ino == output_info.st_ino) {
      return invalid_argument("--output " + path + ": is the input file");
    }
  }
  const std::string directory = directory_of(path);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    return io_error("--output: directory " + directory, errno);
  }
  return {};
}

bool is_output_of(const std::string& path, const std::string& run_id, int64_t last_row) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  std::string last;
  while (std::getline(in, line)) last.swap(line);
  const std::string start =
      "{\"id\":\"batch_req_" + run_id + "_" + std::to_string(last_row) + "\",";
  return last.compare(0, start.size(), start) == 0;
}

}  // namespace spillway
