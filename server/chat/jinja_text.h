// Python's view of text over UTF-8: characters are code points. All text here is valid UTF-8. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::jinja {

// The code point at `at`, which is moved behind it. REQUIRES: at < text.size().
char32_t next_character(std::string_view text, size_t* at);
void append_character(char32_t character, std::string* text);

bool is_space(char32_t character);                    // str.isspace()
size_t skip_space(std::string_view text, size_t at);  // Behind the white space at `at`
size_t count_characters_of(std::string_view text);
// Where the character of that index begins; the end if there are no more.
size_t character_start(std::string_view text, size_t index);
// Where each character begins, and the end: 8 bytes a character.
std::vector<size_t> character_starts(std::string_view text);

// str.strip() of white space, or of any of the characters `of`.
std::string_view strip(std::string_view text, bool left, bool right,
                       std::optional<std::string_view> of = {});

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalized(std::string_view text);     // str.capitalize()
std::string title_of_str(std::string_view text);    // str.title()
std::string title_of_jinja(std::string_view text);  // The filter `title`, which is another one

// repr(): in quotes, with escapes for what does not print.
std::string quoted(std::string_view text);

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// int(text, base) and float(text); empty where Python raises ValueError. Overflow of int64 is
// reported in `overflow`.
std::optional<int64_t> parse_int(std::string_view text, int base, bool* overflow);
std::optional<double> parse_real(std::string_view text);

// str() of a float: the shortest digits that read back as the same number.
std::string format_real(double value);

// The place of `what` in `text` at or behind `from`, in linear time, or npos.
size_t find_text(std::string_view text, std::string_view what, size_t from = 0);

}  // namespace spillway::jinja
