#include "server/batches/crash_mark.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>

#include "kernels/base/check.h"

namespace spillway {

namespace {

constexpr std::array kCrashes = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};

// The exception to "no mutable globals": a handler can access nothing else.
struct sigaction crashes_before[kCrashes.size()];
char mark_path[4096] = "";
const void* mark_rows = nullptr;
size_t mark_bytes = 0;

// Only async-signal-safe calls.
extern "C" void on_crash(int signal) {
  const int fd = ::open(mark_path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd >= 0) {
    // A mark without rows still shows that there was a crash.
    [[maybe_unused]] const ssize_t written = ::write(fd, mark_rows, mark_bytes);
    ::close(fd);
  }
  for (size_t i = 0; i < kCrashes.size(); ++i)
    ::sigaction(kCrashes[i], &crashes_before[i], nullptr);
  ::raise(signal);  // Blocked until this returns; then the earlier handler, or the end.
}

void install(int signal, struct sigaction* before) {
  struct sigaction action {};
  action.sa_handler = on_crash;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  SPILLWAY_CHECK(::sigaction(signal, &action, before) == 0);
}

}  // namespace

// The handler writes the slots' memory as it is.
static_assert(sizeof(std::atomic<int64_t>) == sizeof(int64_t) &&
              std::atomic<int64_t>::is_always_lock_free);

CrashMark::CrashMark(const std::string& path, size_t slots) {
  slots_.rows_.reset(new std::atomic<int64_t>[slots + 1]());
  SPILLWAY_CHECK(mark_path[0] == '\0');
  if (path.size() >= sizeof(mark_path)) return;  // Such a file cannot be opened anyway.
  std::memcpy(mark_path, path.c_str(), path.size() + 1);
  mark_rows = slots_.rows_.get();
  mark_bytes = (slots + 1) * sizeof(int64_t);
  for (size_t i = 0; i < kCrashes.size(); ++i) install(kCrashes[i], &crashes_before[i]);
}

CrashMark::~CrashMark() {
  if (mark_path[0] == '\0') return;
  for (size_t i = 0; i < kCrashes.size(); ++i)
    ::sigaction(kCrashes[i], &crashes_before[i], nullptr);
  mark_path[0] = '\0';
}

CrashMark::Crash CrashMark::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Crash crash;
  in.read(reinterpret_cast<char*>(&crash.run), sizeof(crash.run));
  int64_t row = 0;
  while (in.read(reinterpret_cast<char*>(&row), sizeof(row))) {
    if (row != 0) crash.rows.push_back(row);
  }
  return crash;
}

}  // namespace spillway
