#include "server/commands/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "kernels/base/check.h"

namespace spillway {

namespace {

constexpr std::array kStops = {SIGINT, SIGTERM};
constexpr std::array kCrashes = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
constexpr int kInterruptedStatus = 130;

// The exception to "no mutable globals": a handler can reach nothing else.
volatile sig_atomic_t stops_seen = 0;
struct sigaction stops_before[kStops.size()];
struct sigaction pipe_before;
struct sigaction crashes_before[kCrashes.size()];
char mark_path[4096] = "";

// Only async-signal-safe calls from here on.
extern "C" void on_stop(int) {
  if (stops_seen != 0) ::_exit(kInterruptedStatus);
  stops_seen = 1;
}

extern "C" void on_crash(int signal) {
  const int fd = ::open(mark_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  if (fd >= 0) ::close(fd);
  for (size_t i = 0; i < kCrashes.size(); ++i)
    ::sigaction(kCrashes[i], &crashes_before[i], nullptr);
  ::raise(signal);  // Blocked until this returns; then the earlier handler, or the end.
}

void install(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  SPILLWAY_CHECK(::sigaction(signal, &action, before) == 0);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  stops_seen = 0;
  for (size_t i = 0; i < kStops.size(); ++i) install(kStops[i], on_stop, &stops_before[i]);
  install(SIGPIPE, SIG_IGN, &pipe_before);
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kStops.size(); ++i) ::sigaction(kStops[i], &stops_before[i], nullptr);
  ::sigaction(SIGPIPE, &pipe_before, nullptr);
}

bool InterruptGuard::interrupted() const {
  return stops_seen != 0;
}

CrashMark::CrashMark(const std::string& path) {
  SPILLWAY_CHECK(mark_path[0] == '\0');
  if (path.size() >= sizeof(mark_path)) return;  // Such a file cannot be opened anyway.
  std::memcpy(mark_path, path.c_str(), path.size() + 1);
  for (size_t i = 0; i < kCrashes.size(); ++i) install(kCrashes[i], on_crash, &crashes_before[i]);
}

CrashMark::~CrashMark() {
  if (mark_path[0] == '\0') return;
  for (size_t i = 0; i < kCrashes.size(); ++i)
    ::sigaction(kCrashes[i], &crashes_before[i], nullptr);
  mark_path[0] = '\0';
}

}  // namespace spillway
