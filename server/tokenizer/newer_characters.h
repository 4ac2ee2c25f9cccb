// Characters that Unicode gained in versions 15.0 to 16.0, for libraries that are older.
//
// PyPI's `tokenizers` matches patterns with Unicode 16; Debian 12 has Oniguruma 6.9.8 (Unicode 14)
// and ICU 72 (Unicode 15). Each of the 10,302 characters that they see differently is read as an
// older one of the same general category, the same number of UTF-8 bytes and, for ideographs, the
// same script, so that byte offsets stay what they are. With a newer library nothing changes.
// What a script of its own would say of them (\p{Garay}) stays unknown. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// The older character that stands for `point`; `point` itself for all others.
char32_t older_character(char32_t point);

// Writes `text` with every newer character replaced to `replaced` and returns true; false, without
// a copy, if there is none. O(bytes). REQUIRES: valid UTF-8.
bool replace_newer_characters(std::string_view text, std::string* replaced);

}  // namespace spillway
