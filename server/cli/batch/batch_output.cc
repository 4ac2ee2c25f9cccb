#include "server/cli/batch/batch_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

// The beginning of a line, and the end of one without an error, as batch_line.cc writes them.
std::string id_start(const std::string& run_id) {
  return "{\"id\":\"batch_req_" + run_id + "_";
}
constexpr std::string_view kNoError = ",\"error\":null}";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// The line number in a line's id; 0 when the line is not one of ours.
int64_t row_number(const nlohmann::json& line) {
  if (!line.is_object() || !line.contains("id") || !line["id"].is_string()) return 0;
  if (!line.contains("response") || !line["response"].is_object()) return 0;
  if (!line["response"].contains("body") || !line["response"]["body"].is_object()) return 0;
  const std::string id = line["id"];
  int64_t row = 0;
  const char* end = id.data() + id.size();
  const auto [rest, error] = std::from_chars(id.data() + id.rfind('_') + 1, end, row);
  return error == std::errc() && rest == end ? row : 0;
}

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error("open " + path, errno);
  const int code = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return code == 0 ? Status() : io_error("sync " + path, error);
}

}  // namespace

Status write_lines(const std::string& path, const std::string& tag,
                   const std::function<Status(const AddLine& add)>& write) {
  const std::string temporary = path + "." + tag + ".tmp";
  const auto written = [&]() -> Status {
    Writer writer(temporary);
    SPILLWAY_RETURN_IF_ERROR(writer.open());
    SPILLWAY_RETURN_IF_ERROR(write([&](std::string_view line) { return writer.add_line(line); }));
    return writer.sync();
  }();
  if (!written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error("rename to " + path, errno);
  return sync_directory(directory_of(path));
}

Status write_output(const Journal& journal, const std::string& path, const std::string& tag) {
  return write_lines(path, tag, [&](const AddLine& add) {
    return journal.for_each([&](int64_t, std::string_view line) { return add(line); });
  });
}

std::string output_target(const std::string& path) {
  constexpr int kLinksMax = 40;  // As the kernel's
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; links < kLinksMax && std::filesystem::is_symlink(target, error); ++links) {
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  }
  return target.string();
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

Result<OutputFound> find_output(const std::string& path, const std::string& run_id, int64_t rows,
                                int64_t last_row) {
  OutputFound found;
  found.exists = ::access(path.c_str(), F_OK) == 0;
  if (!found.exists) return found;
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error("open " + path, errno);
  std::string line;
  std::string last;
  int64_t lines = 0;
  while (std::getline(in, line)) {
    ++lines;
    if (!ends_with(line, kNoError)) ++found.failed;
    last.swap(line);
  }
  const std::string start = id_start(run_id) + std::to_string(last_row) + "\",";
  found.whole = lines == rows && (rows == 0 || last.compare(0, start.size(), start) == 0);
  return found;
}

Status read_back(const std::string& path, Journal& journal) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error("open " + path, errno);
  int64_t before = 0;
  for (std::string line; std::getline(in, line);) {
    if (!ends_with(line, kNoError)) continue;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    JournalRow row;
    row.line = line;
    row.row = row_number(json);
    if (row.row <= before) {
      return corruption(path + ": a line is damaged; --overwrite runs every line again");
    }
    before = row.row;
    const nlohmann::json usage = json["response"]["body"].value("usage", nlohmann::json::object());
    row.prompt_tokens = usage.value("prompt_tokens", int64_t{0});
    row.generated_tokens = usage.value("completion_tokens", int64_t{0});
    SPILLWAY_RETURN_IF_ERROR(journal.finish(row));
  }
  return journal.commit();
}

}  // namespace spillway
