#include "server/http/random_id.h"

#include <sys/random.h>

#include <cerrno>
#include <system_error>

namespace spillway {
namespace {

// std::random_device asks the processor for its features each time, which a virtual machine answers
// in tens of microseconds.
void fill(void* bytes, size_t count) {
  size_t done = 0;
  while (done < count) {
    const ssize_t got = ::getrandom(static_cast<char*>(bytes) + done, count - done, 0);
    if (got < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category());
    if (got > 0) done += static_cast<size_t>(got);
  }
}

}  // namespace

std::string random_hex(int digits) {
  std::string text(static_cast<size_t>(digits), '\0');
  fill(text.data(), text.size());
  for (char& digit : text) digit = "0123456789abcdef"[static_cast<unsigned char>(digit) & 15u];
  return text;
}

uint64_t random_u64() {
  uint64_t number = 0;
  fill(&number, sizeof number);
  return number;
}

}  // namespace spillway
