#include "server/chat/jinja_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace spillway::jinja {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; });
}

char ascii_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

bool is_cased(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
}

// One character in title case.
std::string title_character(char32_t c) {
  std::string plain;
  append_character(c, &plain);
  const auto simple = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  const std::string upper = to_upper(plain);
  if (simple == c && count_characters_of(upper) > 1) {  // ß is Ss.
    size_t at = 0;
    next_character(upper, &at);
    return upper.substr(0, at) + to_lower(std::string_view(upper).substr(at));
  }
  std::string title;
  append_character(simple, &title);
  return title;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE:
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    default:
      return true;
  }
}

void append_escaped(char32_t c, std::string* out) {
  char buffer[16];
  const auto code = static_cast<unsigned>(c);
  const char* form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof(buffer), form, code);
  *out += buffer;
}

bool is_line_end(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = ascii_lower(c);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

}  // namespace

char32_t next_character(std::string_view text, size_t* at) {
  UChar32 c = 0;
  size_t i = *at;
  U8_NEXT(text.data(), i, text.size(), c);
  *at = i;
  return c < 0 ? char32_t{0xfffd} : static_cast<char32_t>(c);
}

void append_character(char32_t character, std::string* text) {
  uint8_t bytes[4];
  size_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, static_cast<UChar32>(character));
  text->append(reinterpret_cast<const char*>(bytes), length);
}

bool is_space(char32_t c) {
  return (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_space(next_character(text, &next))) break;
    at = next;
  }
  return at;
}

size_t count_characters_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

size_t character_start(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_character(text, &at);
  return at;
}

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); next_character(text, &at)) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

std::string_view strip(std::string_view text, bool left, bool right,
                       std::optional<std::string_view> of) {
  std::u32string set;
  for (size_t at = 0; of && at < of->size();) set += next_character(*of, &at);
  const auto goes = [&](char32_t c) {
    return of ? set.find(c) != std::u32string::npos : is_space(c);
  };
  while (left && !text.empty()) {
    size_t at = 0;
    if (!goes(next_character(text, &at))) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    size_t end = at;
    if (!goes(next_character(text, &end))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string to_upper(std::string_view text) {
  std::string upper(text);
  if (is_ascii(text)) {
    std::transform(upper.begin(), upper.end(), upper.begin(), ascii_upper);
    return upper;
  }
  auto wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  upper.clear();
  wide.toUpper(icu::Locale::getRoot()).toUTF8String(upper);
  return upper;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  if (is_ascii(text)) {
    std::transform(lower.begin(), lower.end(), lower.begin(), ascii_lower);
    return lower;
  }
  auto wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  lower.clear();
  wide.toLower(icu::Locale::getRoot()).toUTF8String(lower);
  return lower;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  size_t at = 0;
  const char32_t first = next_character(text, &at);
  return title_character(first) + to_lower(text.substr(at));
}

std::string title_of_str(std::string_view text) {
  std::string title;
  bool in_word = false;
  std::string word;
  const auto end_word = [&] {
    title += capitalized(word);
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, &at);
    const bool cased = is_cased(c);
    if (cased != in_word) end_word();
    in_word = cased;
    if (cased) {
      append_character(c, &word);
    } else {
      append_character(c, &title);
    }
  }
  end_word();
  return title;
}

std::string title_of_jinja(std::string_view text) {
  std::string title;
  std::string word;
  const auto end_word = [&] {
    size_t at = 0;
    if (word.empty()) return;
    next_character(word, &at);
    title += to_upper(std::string_view(word).substr(0, at));
    title += to_lower(std::string_view(word).substr(at));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, &at);
    if (is_space(c) ||
        (c < 0x80 && std::strchr("-({[<", static_cast<int>(c)) != nullptr && c != 0)) {
      end_word();
      append_character(c, &title);
    } else {
      append_character(c, &word);
    }
  }
  end_word();
  return title;
}

std::string quoted(std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, &at);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_character(c, &out);
    } else {
      append_escaped(c, &out);
    }
  }
  return out + quote;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_character(text, &at);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::optional<int64_t> parse_int(std::string_view text, int base, bool* overflow) {
  *overflow = false;
  text = strip(text, true, true);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const int prefix = text.size() > 1 && text[0] == '0' ? digit_of(text[1]) : 99;
  const int of_prefix = prefix == 'b' - 'a' + 10   ? 2
                        : prefix == 'o' - 'a' + 10 ? 8
                        : prefix == 'x' - 'a' + 10 ? 16
                                                   : 0;
  bool after_digit = false;
  if (of_prefix != 0 && (base == of_prefix || base == 0)) {
    text.remove_prefix(2);
    base = of_prefix;
    after_digit = true;  // 0x_1 is allowed.
  } else if (base == 0) {
    base = 10;
    const bool zeros = text.find_first_not_of("0_") == text.npos;
    if (text.size() > 1 && text[0] == '0' && !zeros) return std::nullopt;
  }
  if (text.empty() || base < 2 || base > 36) return std::nullopt;
  __int128 value = 0;
  bool digit = false;
  for (const char c : text) {
    if (c == '_') {
      if (!after_digit) return std::nullopt;
      after_digit = false;
      digit = false;
      continue;
    }
    if (digit_of(c) >= base) return std::nullopt;
    value = std::min<__int128>(value * base + digit_of(c), __int128{1} << 80);
    after_digit = digit = true;
  }
  if (!digit) return std::nullopt;
  if (negative) value = -value;
  if (value > INT64_MAX || value < INT64_MIN) {
    *overflow = true;
    return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  text = strip(text, true, true);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] == '_') {
      if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
      continue;
    }
    plain += ascii_lower(text[i]);
  }
  std::string_view rest = plain;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  if (rest == "inf" || rest == "infinity" || rest == "nan") {
    return std::strtod(plain.c_str(), nullptr);
  }
  // What strtod reads and Python does not: hexadecimal, nan(...).
  if (rest.empty() || rest.find_first_not_of("0123456789.e+-") != rest.npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

std::string format_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string text(buffer, error == std::errc() ? end : buffer);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    const std::string power = std::to_string(std::abs(exponent));
    return sign + digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") + "e" +
           (exponent < 0 ? "-" : "+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

size_t find_text(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return text.npos;
  if (what.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  if (found == nullptr) return text.npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace spillway::jinja
