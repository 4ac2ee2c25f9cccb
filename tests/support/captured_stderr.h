// What the program writes to stderr, or to stdout, while this lives. At most one at a time for
// each.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "kernels/base/check.h"

namespace spillway::test {

class Captured {
 public:
  explicit Captured(std::FILE* stream = stderr)
      : stream_(stream), file_(std::tmpfile()), before_(::dup(::fileno(stream))) {
    SPILLWAY_CHECK(file_ != nullptr && before_ >= 0);
    std::fflush(stream_);
    ::dup2(::fileno(file_), ::fileno(stream_));
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    end();
    std::fclose(file_);
  }

  // Everything so far; from here on the stream is as it was.
  std::string end() {
    if (before_ < 0) return text_;
    std::fflush(stream_);
    ::dup2(before_, ::fileno(stream_));
    ::close(before_);
    before_ = -1;
    std::rewind(file_);
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) text_ += static_cast<char>(c);
    return text_;
  }

 private:
  std::FILE* stream_;
  std::FILE* file_;
  int before_;
  std::string text_;
};

}  // namespace spillway::test
