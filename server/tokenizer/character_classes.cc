#include "server/tokenizer/character_classes.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <cstdint>

#include "kernels/base/check.h"
#include "server/tokenizer/newer_characters.h"

namespace spillway {
namespace {

// The general categories as a mask; of a character that ICU does not know, those of its older
// stand-in.
uint32_t categories_of(char32_t point) {
  const uint32_t mask = U_GET_GC_MASK(static_cast<UChar32>(point));
  if ((mask & U_GC_CN_MASK) == 0) return mask;
  return U_GET_GC_MASK(static_cast<UChar32>(older_character(point)));
}

bool in(char32_t point, char32_t first, char32_t last) {
  return point >= first && point <= last;
}

// Capitals that ICU 72 does not know yet, each with its distance to the small letter.
int32_t newer_case_distance(char32_t point) {
  if (in(point, 0x10D50, 0x10D65)) return 32;  // Garay
  if (in(point, 0x16EA0, 0x16EB8)) return 27;  // Beria Erfe
  switch (point) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return 1;
    case 0xA7CB:
      return 0x264 - 0xA7CB;
    case 0xA7DC:
      return 0x19B - 0xA7DC;
    default:
      return 0;
  }
}

}  // namespace

CharacterClass class_of(char32_t point) {
  const uint32_t mask = categories_of(point);
  if ((mask & U_GC_L_MASK) != 0) return CharacterClass::kLetter;
  if ((mask & U_GC_N_MASK) != 0) return CharacterClass::kNumber;
  return is_space(point) ? CharacterClass::kSpace : CharacterClass::kOther;
}

bool is_space(char32_t point) {
  return u_isUWhiteSpace(static_cast<UChar32>(point)) != 0;
}

bool is_number(char32_t point) {
  if (point < 0x80) return point >= '0' && point <= '9';
  // Of Unicode 17, which Rust's classes are of.
  if (in(point, 0x11DE0, 0x11DE9) || in(point, 0x16FF4, 0x16FF6)) return true;
  return (categories_of(point) & U_GC_N_MASK) != 0;
}

bool is_word(char32_t point) {
  const uint32_t mask = categories_of(point);
  if ((mask & (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_NL_MASK | U_GC_PC_MASK)) != 0) {
    return true;
  }
  return point == 0x200C || point == 0x200D ||
         u_hasBinaryProperty(static_cast<UChar32>(point), UCHAR_ALPHABETIC) != 0;
}

bool is_punctuation(char32_t point) {
  if (point < 0x80)
    return in(point, '!', '/') || in(point, ':', '@') || in(point, '[', '`') || in(point, '{', '~');
  if (point == 0x166D || point == 0x111C9) return true;  // Later versions call them symbols.
  if ((U_GET_GC_MASK(static_cast<UChar32>(point)) & U_GC_P_MASK) == 0) return false;
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(point), age);
  return age[0] <= 8;
}

void append_character(char32_t point, std::string* target) {
  uint8_t bytes[U8_MAX_LENGTH];
  int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, point);
  target->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

void append_lower_case(char32_t point, std::string* target) {
  if (point == 0x130) {  // The one capital whose small letter is two characters
    target->append("i\xCC\x87");
    return;
  }
  const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(point)));
  const int32_t distance = lower == point ? newer_case_distance(point) : 0;
  append_character(static_cast<char32_t>(static_cast<int32_t>(lower) + distance), target);
}

char32_t next_character(std::string_view text, size_t* next) {
  const auto* data = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 point;
  U8_NEXT(data, *next, text.size(), point);
  SPILLWAY_CHECK(point >= 0);
  return static_cast<char32_t>(point);
}

size_t leading_space_end(std::string_view text) {
  for (size_t next = 0; next < text.size();) {
    const size_t begin = next;
    if (!is_space(next_character(text, &next))) return begin;
  }
  return text.size();
}

size_t trailing_space_begin(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && U8_IS_TRAIL(text[begin])) --begin;
    size_t next = begin;
    if (!is_space(next_character(text, &next))) return end;
    end = begin;
  }
  return 0;
}

}  // namespace spillway
