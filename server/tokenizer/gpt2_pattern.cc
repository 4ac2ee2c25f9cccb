#include "server/tokenizer/gpt2_pattern.h"

#include <array>
#include <cstdint>

#include "kernels/base/check.h"
#include "server/tokenizer/character_classes.h"

namespace spillway {
namespace {

using Class = CharacterClass;

// Most text is ASCII: its classes without asking ICU.
constexpr std::array<Class, 128> make_ascii() {
  std::array<Class, 128> classes{};
  for (unsigned point = 0; point < 128; ++point) {
    const unsigned letter = point | 0x20;
    classes[point] = letter >= 'a' && letter <= 'z'                     ? Class::kLetter
                     : point >= '0' && point <= '9'                     ? Class::kNumber
                     : point == ' ' || (point >= '\t' && point <= '\r') ? Class::kSpace
                                                                        : Class::kOther;
  }
  return classes;
}
constexpr std::array<Class, 128> kAscii = make_ascii();

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
    const auto byte = static_cast<uint8_t>(text_[next_]);
    if (byte < 128) {
      kind_ = kAscii[byte];
      ++next_;
    } else {
      kind_ = class_of(next_character(text_, &next_));
    }
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
