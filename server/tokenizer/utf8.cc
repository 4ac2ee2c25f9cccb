#include "server/tokenizer/utf8.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>

namespace spillway {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The first ill-formed sequence at or after `begin`; both are bytes.size() when there is none.
struct IllFormed {
  size_t begin;
  size_t end;
};

IllFormed find_ill_formed(std::string_view bytes, size_t begin) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  size_t next = begin;
  while (next < size) {
    const size_t start = next;
    UChar32 point;
    U8_NEXT(data, next, size, point);  // On an error `next` is behind the maximal subpart.
    if (point < 0) return {start, next};
  }
  return {size, size};
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  return find_ill_formed(bytes, 0).begin == bytes.size();
}

void append_as_utf8(std::string_view bytes, std::string* target) {
  size_t done = 0;
  while (done < bytes.size()) {
    const IllFormed bad = find_ill_formed(bytes, done);
    target->append(bytes.substr(done, bad.begin - done));
    if (bad.begin < bad.end) target->append(kReplacement);
    done = bad.end;
  }
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  append_as_utf8(bytes, &text);
  return text;
}

size_t complete_prefix_bytes(std::string_view bytes) {
  // ICU's macro wants a small signed length; only the last three bytes can be too few.
  const size_t rest = bytes.size() - std::min<size_t>(bytes.size(), 3);
  const auto* tail = reinterpret_cast<const uint8_t*>(bytes.data()) + rest;
  auto length = static_cast<int32_t>(bytes.size() - rest);
  U8_TRUNCATE_IF_INCOMPLETE(tail, 0, length);
  return rest + static_cast<size_t>(length);
}

}  // namespace spillway
