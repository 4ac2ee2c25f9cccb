// The classes of characters that tokenizers ask for, as PyPI's `tokenizers` sees them: Rust's own
// classes, of Unicode 16 and 17, whatever the version of the installed ICU (newer_characters.h).
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace spillway {

enum class CharacterClass : unsigned char { kLetter, kNumber, kSpace, kOther };
CharacterClass class_of(char32_t point);

bool is_space(char32_t point);        // White_Space
bool is_number(char32_t point);       // Nd, Nl, No
bool is_word(char32_t point);         // \w: alphabetic, marks, digits, connectors, joiners
bool is_punctuation(char32_t point);  // P of Unicode 8, and ASCII's symbols

// Appends the lower case of one character, by itself: a final sigma is like any other.
void append_lower_case(char32_t point, std::string* target);

void append_character(char32_t point, std::string* target);

// The character of valid UTF-8 that begins at *next, which moves behind it.
// REQUIRES: *next < text.size().
char32_t next_character(std::string_view text, size_t* next);

// The end of the whitespace at the start of `text`, and the start of that at its end.
size_t leading_space_end(std::string_view text);
size_t trailing_space_begin(std::string_view text);

}  // namespace spillway
