#include "server/batches/batch_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

namespace spillway {

namespace {

// Also what is read for one line in another order than the file's, so not much more than a line.
constexpr size_t kChunkBytes = size_t{64} << 10;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

}  // namespace

class BatchInput::Body {
 public:
  Body(int fd, std::string path, uint64_t bytes)
      : fd_(fd),
        path_(std::move(path)),
        bytes_(bytes),
        chunk_(kChunkBytes),
        hash_(XXH3_createState()) {
    SPILLWAY_CHECK(hash_ != nullptr);
    XXH3_128bits_reset(hash_.get());
  }
  ~Body() { ::close(fd_); }

  Result<bool> next(InputLine* line) {
    for (;;) {
      const uint64_t start = offset_ - filled_ + at_ + skipped_;
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, gather());
      if (!found) return false;
      ++number_;
      std::string_view text = line_;
      if (number_ == 1 && text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
      if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
      if (too_long_ || !is_blank(text)) {
        *line = {number_, too_long_ ? std::string_view() : text, too_long_, start};
        return true;
      }
    }
  }

  void rewind() {
    SPILLWAY_CHECK(offset_ == bytes_ || known_);
    known_ = true;
    offset_ = 0;
    at_ = filled_ = skipped_ = 0;
    number_ = 0;
  }

  void go_to(uint64_t offset, int64_t number) {
    SPILLWAY_CHECK(offset < bytes_ && (offset_ == bytes_ || known_));
    known_ = true;
    number_ = number - 1;
    const uint64_t chunk_offset = offset / kChunkBytes * kChunkBytes;
    if (filled_ > 0 && chunk_offset == offset_ - filled_) {
      at_ = offset - chunk_offset;
      return;
    }
    offset_ = chunk_offset;
    at_ = filled_ = 0;
    skipped_ = offset - chunk_offset;
  }

  std::string hash() const {
    const XXH128_hash_t value = XXH3_128bits_digest(hash_.get());
    char text[33];
    std::snprintf(text, sizeof(text), "%016llx%016llx",
                  static_cast<unsigned long long>(value.high64),
                  static_cast<unsigned long long>(value.low64));
    return text;
  }

 private:
  // Reads the next line, blank or not, into line_; if it is too long only the start is kept.
  Result<bool> gather() {
    line_.clear();
    too_long_ = false;
    bool any = false;
    for (;;) {
      if (at_ == filled_) {
        SPILLWAY_RETURN_IF_ERROR(read_chunk());
        if (filled_ == 0) return any;
      }
      any = true;
      const std::string_view rest(chunk_.data() + at_, filled_ - at_);
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      // One more for a CR, which does not count.
      too_long_ = too_long_ || line_.size() + part.size() > kBatchLineBytesMax + 1;
      if (!too_long_) line_ += part;
      at_ += part.size() + (end == std::string_view::npos ? 0 : 1);
      if (end == std::string_view::npos) continue;
      if (line_.size() > kBatchLineBytesMax && line_.back() != '\r') too_long_ = true;
      return true;
    }
  }

  // Reads the next bytes into chunk_; none at the end, and none after an error.
  Status read_chunk() {
    at_ = 0;
    filled_ = 0;
    const size_t wanted = std::min<uint64_t>(chunk_.size(), bytes_ - offset_);
    for (size_t read = 0; read < wanted;) {
      const ssize_t got =
          ::pread(fd_, chunk_.data() + read, wanted - read, static_cast<off_t>(offset_ + read));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return io_error("read " + path_, errno);
      if (got == 0) return changed("is shorter than it was");
      read += static_cast<size_t>(got);
    }
    if (wanted == 0) return {};
    const uint64_t part = XXH3_64bits(chunk_.data(), wanted);
    if (!known_) {
      parts_.push_back(part);
      XXH3_128bits_update(hash_.get(), chunk_.data(), wanted);
    } else if (parts_[offset_ / kChunkBytes] != part) {
      return changed("has changed");
    }
    filled_ = wanted;
    offset_ += filled_;
    at_ = std::exchange(skipped_, 0);
    return {};
  }

  Status changed(const std::string& how) const {
    return invalid_argument(path_ + " " + how + " since this run began to read it (bytes " +
                            std::to_string(offset_) + " and on)");
  }

  int fd_;
  std::string path_;
  const uint64_t bytes_;         // The file's size when it was opened
  uint64_t offset_ = 0;          // File offset behind chunk_
  bool known_ = false;           // The first pass is over
  std::vector<uint64_t> parts_;  // Hashes of the first pass's chunks
  std::vector<char> chunk_;
  size_t at_ = 0;
  size_t filled_ = 0;
  size_t skipped_ = 0;  // Bytes of the next chunk that are in front of the next line
  std::string line_;
  bool too_long_ = false;
  int64_t number_ = 0;
  struct FreeHash {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeHash> hash_;
};

BatchInput::BatchInput(std::unique_ptr<Body> body) : body_(std::move(body)) {}
BatchInput::BatchInput(BatchInput&&) noexcept = default;
BatchInput& BatchInput::operator=(BatchInput&&) noexcept = default;
BatchInput::~BatchInput() = default;

Result<BatchInput> BatchInput::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // A FIFO must not hang.
  if (fd < 0) return io_error("open " + path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return io_error("stat " + path, error);
  }
  auto body = std::make_unique<Body>(fd, path, static_cast<uint64_t>(info.st_size));
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(path +
                            ": not a regular file; the input is read twice, so save it first");
  }
  return BatchInput(std::move(body));
}

Result<bool> BatchInput::next(InputLine* line) {
  return body_->next(line);
}

std::string BatchInput::hash() const {
  return body_->hash();
}

void BatchInput::rewind() {
  body_->rewind();
}

void BatchInput::go_to(uint64_t offset, int64_t number) {
  body_->go_to(offset, number);
}

Result<InputSummary> summarize(BatchInput& input) {
  InputSummary summary;
  InputLine line;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, input.next(&line));
    if (!found) break;
    ++summary.rows;
    summary.last_row = line.number;
  }
  summary.hash = input.hash();
  input.rewind();
  return summary;
}

}  // namespace spillway
