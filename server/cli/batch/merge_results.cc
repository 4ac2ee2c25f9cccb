#include "server/cli/batch/merge_results.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "offload/io/file.h"

namespace spillway {
namespace {

constexpr size_t kMergeBufferBytes = size_t{1} << 20;

struct Place {
  int64_t number = 0;   // INT64_MAX: none, so that it sorts last
  uint64_t offset = 0;  // Of the line, in its file
  bool error = false;   // In which of the files
};

// Appends the places of the lines of a file; returns how many there are.
Result<int64_t> index_lines(const std::string& path, bool error, std::vector<Place>* places) {
  if (path.empty()) return int64_t{0};
  std::ifstream in(path, std::ios::binary);
  if (!in) return io_error("open " + path, errno);
  int64_t lines = 0;
  uint64_t offset = 0;
  for (std::string line; std::getline(in, line); offset += line.size() + 1) {
    if (line.empty()) continue;
    ++lines;
    const int64_t number = line_number_of(line);
    places->push_back({number > 0 ? number : INT64_MAX, offset, error});
  }
  if (in.bad()) return io_error("read " + path, errno);
  return lines;
}

class Output {
 public:
  static Result<Output> create(const std::string& path) {
    SPILLWAY_ASSIGN_OR_RETURN(File file, File::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    return Output(std::move(file));
  }

  Status add_line(const std::string& line) {
    buffer_ += line;
    buffer_ += '\n';
    return buffer_.size() < kMergeBufferBytes ? Status() : flush();
  }

  Status sync() {
    SPILLWAY_RETURN_IF_ERROR(flush());
    return file_.sync();
  }

 private:
  explicit Output(File file) : file_(std::move(file)) {}

  Status flush() {
    SPILLWAY_RETURN_IF_ERROR(file_.write(written_, std::as_bytes(std::span(buffer_))));
    written_ += buffer_.size();
    buffer_.clear();
    return {};
  }

  File file_;
  uint64_t written_ = 0;
  std::string buffer_;
};

Status write_lines(const std::vector<Place>& places, const std::string& answers,
                   const std::string& errors, const std::string& path) {
  std::ifstream files[2];
  if (!answers.empty()) files[0].open(answers, std::ios::binary);
  if (!errors.empty()) files[1].open(errors, std::ios::binary);
  uint64_t at[2] = {0, 0};  // Where each file is; the next line is mostly there already.
  SPILLWAY_ASSIGN_OR_RETURN(Output output, Output::create(path));
  std::string line;
  for (const Place& place : places) {
    const size_t which = place.error ? 1 : 0;
    std::ifstream& in = files[which];
    in.clear();
    if (at[which] != place.offset) in.seekg(static_cast<std::streamoff>(place.offset));
    if (!std::getline(in, line)) return io_error("read " + (place.error ? errors : answers), errno);
    at[which] = place.offset + line.size() + 1;
    SPILLWAY_RETURN_IF_ERROR(output.add_line(line));
  }
  return output.sync();
}

}  // namespace

int64_t line_number_of(std::string_view line) {
  constexpr std::string_view kStart = "{\"id\":\"batch_req_";
  if (!line.starts_with(kStart)) return 0;
  const std::string_view id = line.substr(0, line.find('"', kStart.size()));
  if (id.size() == line.size()) return 0;
  const size_t last = id.rfind('_');
  int64_t number = 0;
  const auto [end, error] = std::from_chars(id.data() + last + 1, id.data() + id.size(), number);
  return error == std::errc() && end == id.data() + id.size() && number > 0 ? number : 0;
}

Result<MergedResults> merge_results(const std::string& answers, const std::string& errors,
                                    const std::string& temporary, const std::string& target) {
  MergedResults merged;
  std::vector<Place> places;
  SPILLWAY_ASSIGN_OR_RETURN(merged.answers, index_lines(answers, false, &places));
  SPILLWAY_ASSIGN_OR_RETURN(merged.errors, index_lines(errors, true, &places));
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.number < b.number; });
  Status status = write_lines(places, answers, errors, temporary);
  if (status.ok() && std::rename(temporary.c_str(), target.c_str()) != 0) {
    status = io_error("rename " + temporary + " to " + target, errno);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  SPILLWAY_RETURN_IF_ERROR(sync_directory_of(target));
  return merged;
}

}  // namespace spillway
