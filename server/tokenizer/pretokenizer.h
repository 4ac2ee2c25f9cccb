// Cuts text into the pieces that BPE works on, as GPT-2's pattern does:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Letters and numbers are those of Unicode 16, as in the `tokenizers` library, whatever the
// version of the installed ICU (an older one is helped, a newer one may know more).
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway {

// The end of the piece that starts at `begin`. Pieces cover the text without gaps, and cutting all
// of a text is O(bytes). REQUIRES: `text` is valid UTF-8, begin < text.size() is the start of a
// character.
size_t next_piece_end(std::string_view text, size_t begin);

}  // namespace spillway
