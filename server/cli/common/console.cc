#include "server/cli/common/console.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <iostream>

#include "kernels/base/units.h"

namespace spillway {

namespace {

constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

std::string text_line(const char* text, ...) {
  char line[1536];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return std::string(line) + '\n';
}

void say(const std::string& line) {
  std::cerr << line << std::endl;
}

ByteProgress::ByteProgress(std::string what)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) == 1) {}

ByteProgress::~ByteProgress() {
  if (drawn_) std::fputs(kClearLine, stderr);
}

void ByteProgress::show(uint64_t done_bytes, uint64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
  shown_ = now;
  drawn_ = true;
  std::string line = what_ + ": " + format_bytes(done_bytes);
  if (total_bytes > 0) line += " of " + format_bytes(total_bytes);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (done_bytes > 0 && seconds > 0.5) {
    const double rate = static_cast<double>(done_bytes) / seconds;
    line += ", " + format_bytes(static_cast<uint64_t>(rate)) + "/s";
    if (done_bytes < total_bytes) {
      line += ", " + format_seconds(static_cast<double>(total_bytes - done_bytes) / rate) + " left";
    }
  }
  std::fprintf(stderr, "%s%s", kClearLine, line.c_str());
  std::fflush(stderr);
}

}  // namespace spillway
