#include "server/tokenizer/pretokenizer.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/base/check.h"

namespace spillway {
namespace {

enum class Class : uint8_t { kLetter, kNumber, kSpace, kOther };

struct ClassRange {
  UChar32 first;
  UChar32 last;
  Class kind;
};

// Letters and numbers that Unicode 15.1 and 16.0 added. Debian 12's ICU knows 15.0, and would cut
// 5,004 characters differently from a reference with a newer version.
constexpr ClassRange kYoung[] = {
    {0x1C89, 0x1C8A, Class::kLetter},   {0xA7CB, 0xA7CD, Class::kLetter},
    {0xA7DA, 0xA7DC, Class::kLetter},   {0x105C0, 0x105F3, Class::kLetter},
    {0x10D40, 0x10D49, Class::kNumber}, {0x10D4A, 0x10D65, Class::kLetter},
    {0x10D6F, 0x10D85, Class::kLetter}, {0x10EC2, 0x10EC4, Class::kLetter},
    {0x11380, 0x11389, Class::kLetter}, {0x1138B, 0x1138B, Class::kLetter},
    {0x1138E, 0x1138E, Class::kLetter}, {0x11390, 0x113B5, Class::kLetter},
    {0x113B7, 0x113B7, Class::kLetter}, {0x113D1, 0x113D1, Class::kLetter},
    {0x113D3, 0x113D3, Class::kLetter}, {0x116D0, 0x116E3, Class::kNumber},
    {0x11BC0, 0x11BE0, Class::kLetter}, {0x11BF0, 0x11BF9, Class::kNumber},
    {0x13460, 0x143FA, Class::kLetter}, {0x16100, 0x1611D, Class::kLetter},
    {0x16130, 0x16139, Class::kNumber}, {0x16D40, 0x16D6C, Class::kLetter},
    {0x16D70, 0x16D79, Class::kNumber}, {0x18CFF, 0x18CFF, Class::kLetter},
    {0x1CCF0, 0x1CCF9, Class::kNumber}, {0x1E5D0, 0x1E5ED, Class::kLetter},
    {0x1E5F0, 0x1E5F0, Class::kLetter}, {0x1E5F1, 0x1E5FA, Class::kNumber},
    {0x2EBF0, 0x2EE5D, Class::kLetter}};

Class class_of_unassigned(UChar32 point) {
  const auto* range =
      std::lower_bound(std::begin(kYoung), std::end(kYoung), point,
                       [](const ClassRange& entry, UChar32 value) { return entry.last < value; });
  return range != std::end(kYoung) && range->first <= point ? range->kind : Class::kOther;
}

Class class_of(UChar32 point) {
  const uint32_t category = U_GET_GC_MASK(point);
  if ((category & U_GC_L_MASK) != 0) return Class::kLetter;
  if ((category & U_GC_N_MASK) != 0) return Class::kNumber;
  if ((category & U_GC_CN_MASK) != 0) return class_of_unassigned(point);
  return u_isUWhiteSpace(point) ? Class::kSpace : Class::kOther;
}

// A position in the text and the class of the character there.
class Scanner {
 public:
  Scanner(std::string_view text, size_t begin) : text_(text), next_(begin) { advance(); }

  bool at_end() const { return begin_ == text_.size(); }
  size_t begin() const { return begin_; }
  Class kind() const { return kind_; }

  void advance() {
    begin_ = next_;
    if (at_end()) return;
    const auto* data = reinterpret_cast<const uint8_t*>(text_.data());
    UChar32 point;
    U8_NEXT(data, next_, text_.size(), point);
    SPILLWAY_CHECK(point >= 0);
    kind_ = class_of(point);
  }

  // Skips to the first character of another class, or the end.
  void skip(Class kind) {
    while (!at_end() && kind_ == kind) advance();
  }

 private:
  std::string_view text_;
  size_t begin_ = 0;
  size_t next_;
  Class kind_ = Class::kOther;
};

// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start of `text`; 0: none.
size_t contraction_bytes(std::string_view text) {
  for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(0, ending.size()) == ending) return ending.size();
  }
  return 0;
}

// Whitespace gives its last character to the word behind it: several end one character earlier, a
// single one is a piece of its own.
size_t space_end(Scanner scanner) {
  const size_t begin = scanner.begin();
  size_t last = begin;
  while (!scanner.at_end() && scanner.kind() == Class::kSpace) {
    last = scanner.begin();
    scanner.advance();
  }
  return scanner.at_end() || last == begin ? scanner.begin() : last;
}

}  // namespace

size_t next_piece_end(std::string_view text, size_t begin) {
  SPILLWAY_CHECK(begin < text.size());
  if (text[begin] == '\'') {
    const size_t bytes = contraction_bytes(text.substr(begin));
    if (bytes > 0) return begin + bytes;
  }
  Scanner scanner(text, begin);
  if (text[begin] == ' ') {
    Scanner after = scanner;
    after.advance();
    if (!after.at_end() && after.kind() != Class::kSpace) scanner = after;
  }
  if (scanner.kind() == Class::kSpace) return space_end(scanner);
  scanner.skip(scanner.kind());
  return scanner.begin();
}

}  // namespace spillway
