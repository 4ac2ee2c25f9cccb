// GPT-2's pattern by hand, which takes less time than Oniguruma does:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// The ByteLevel pre-tokenizer has it without naming it. Letters and numbers are those of Unicode 16
// (newer_characters.h). Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The end of the piece that starts at `begin`. Pieces cover the text without gaps, and cutting all
// of a text is O(bytes). REQUIRES: `text` is valid UTF-8, begin < text.size() is the start of a
// character.
size_t next_piece_end(std::string_view text, size_t begin);

}  // namespace spillway
