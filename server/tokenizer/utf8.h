// Validation of UTF-8 from outside, and replacement of ill-formed sequences.
//
// An ill-formed byte sequence becomes U+FFFD once per maximal subpart (Unicode 3.9, the WHATWG
// decoder, Python's errors="replace"): "\xE4\xB8" alone is one U+FFFD, "\xFF\xFF" is two.
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace spillway {

bool is_valid_utf8(std::string_view bytes);

// Appends `bytes` to `target` with every ill-formed sequence replaced by U+FFFD. O(bytes).
void append_as_utf8(std::string_view bytes, std::string* target);

// `bytes` with every ill-formed sequence replaced by U+FFFD.
std::string to_utf8(std::string_view bytes);

// The length of the longest prefix of `bytes` that does not end within a character that more bytes
// could complete; at most 3 bytes less than all.
size_t complete_prefix_bytes(std::string_view bytes);

}  // namespace spillway
