#include "server/cli/common/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/base/check.h"

namespace spillway {

namespace {

constexpr std::array kStops = {SIGINT, SIGTERM, SIGHUP};
constexpr int kInterruptedStatus = 130;

// The exception to "no mutable globals": a handler can access nothing else.
// Another thread than the one that is interrupted may ask.
std::atomic<int> stops_seen = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a handler may take no lock");
struct sigaction stops_before[kStops.size()];
struct sigaction pipe_before;
char last_words_text[4096] = "";
size_t last_words_bytes = 0;
char leftover_path[4096] = "";

// Only async-signal-safe calls from here on.
extern "C" void on_stop(int) {
  if (stops_seen != 0) {
    // A failed write makes no difference any more.
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, last_words_text, last_words_bytes);
    if (leftover_path[0] != '\0') ::unlink(leftover_path);
    ::_exit(kInterruptedStatus);
  }
  stops_seen = 1;
}

void install(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  SPILLWAY_CHECK(::sigaction(signal, &action, before) == 0);
}

}  // namespace

InterruptGuard::InterruptGuard(std::string_view last_words, First first,
                               std::string_view leftover) {
  stops_seen = first == First::kEnds ? 1 : 0;
  last_words_bytes = std::min(last_words.size(), sizeof(last_words_text));
  std::copy_n(last_words.begin(), last_words_bytes, last_words_text);
  if (leftover.size() >= sizeof(leftover_path)) leftover = {};
  *std::copy_n(leftover.begin(), leftover.size(), leftover_path) = '\0';
  for (size_t i = 0; i < kStops.size(); ++i) {
    install(kStops[i], on_stop, &stops_before[i]);
    // If hang-ups were ignored by request, keep it so.
    const bool ignored = stops_before[i].sa_handler == SIG_IGN;
    if (kStops[i] == SIGHUP && ignored) ::sigaction(SIGHUP, &stops_before[i], nullptr);
  }
  install(SIGPIPE, SIG_IGN, &pipe_before);
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kStops.size(); ++i) ::sigaction(kStops[i], &stops_before[i], nullptr);
  ::sigaction(SIGPIPE, &pipe_before, nullptr);
}

bool InterruptGuard::interrupted() const {
  return stops_seen != 0;
}

}  // namespace spillway
