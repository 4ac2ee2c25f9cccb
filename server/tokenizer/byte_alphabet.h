// The byte-level alphabet of GPT-2: a printable character for every byte, as used in vocabulary and
// merges files. Printable ASCII and Latin-1 stand for themselves (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF);
// the other 68 bytes take U+0100, U+0101, ... in order ("Ġ" is a space). Also the byte tokens of
// other vocabularies, "<0xNN>". Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// The character of `byte`, in UTF-8.
std::string symbol_of_byte(uint8_t byte);

// The bytes that `piece` (UTF-8) stands for; empty when it has a character outside the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);

// The byte of a byte-fallback token, "<0x0A>"; empty when `piece` is none.
std::optional<uint8_t> byte_of_token(std::string_view piece);

}  // namespace spillway
