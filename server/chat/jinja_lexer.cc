#include "server/chat/jinja_lexer.h"

#include <algorithm>

#include "kernels/base/quote.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The template with line ends as \n, and without the last one.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)), text_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size() && error_.empty()) between_tags();
    if (!error_.empty()) {
      return invalid_argument("line " + std::to_string(line_) + ": " + error_);
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    at_ = text_.size();
  }

  // Moves to `end`, counting lines.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
    line_start_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  bool at(size_t place, std::string_view what) const {
    return text_.substr(std::min(place, text_.size()), what.size()) == what;
  }

  // The text up to `end`, without the white space that the tag behind it, with `sign` (0: none),
  // takes away.
  void add_text(size_t end, char sign, bool is_output) {
    std::string_view text = text_.substr(at_, end - at_);
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && !is_output) {       // lstrip_blocks
      const size_t start = text.rfind('\n') + 1;  // npos + 1 is 0.
      if ((start > 0 || line_start_) && strip(text.substr(start), true, false).empty()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    advance(end);
  }

  char sign_at(size_t place) const { return at(place, "-") ? '-' : at(place, "+") ? '+' : '\0'; }

  void between_tags() {
    size_t tag = text_.find('{', at_);
    while (tag != text_.npos && !at(tag, "{{") && !at(tag, "{%") && !at(tag, "{#")) {
      tag = text_.find('{', tag + 1);
    }
    if (tag == text_.npos) {
      add(TokenKind::kText, std::string(text_.substr(at_)));
      return advance(text_.size());
    }
    const char kind = text_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign != 0 ? 1 : 0);
    add_text(tag, sign, kind == '{');
    if (kind == '#') return comment(inside);
    if (kind == '%') {
      if (const size_t body = raw_begin(inside); body != text_.npos) return raw(body);
    }
    add(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    advance(inside);
    in_tag(kind == '{');
  }

  // Behind a closing tag that may stand at `place`, or npos. trim_blocks takes a line end, too.
  size_t closing(size_t place, std::string_view close, bool is_output) const {
    const char sign = sign_at(place);
    if (sign == '+' && is_output) return text_.npos;
    const size_t begin = place + (sign != 0 ? 1 : 0);
    if (!at(begin, close)) return text_.npos;
    const size_t end = begin + close.size();
    if (sign == '-') return skip_space(text_, end);
    return !is_output && sign == 0 && at(end, "\n") ? end + 1 : end;
  }

  void comment(size_t inside) {
    size_t end = text_.find("#}", inside);
    if (end == text_.npos) return fail("a comment is not closed");
    if (end > inside && (text_[end - 1] == '-' || text_[end - 1] == '+')) --end;
    advance(closing(end, "#}", false));
  }

  // Behind "{% raw %}", whose sign ends at `inside`, or npos.
  size_t raw_begin(size_t inside) const {
    const size_t name = skip_space(text_, inside);
    if (!at(name, "raw")) return text_.npos;
    const size_t close = skip_space(text_, name + 3);
    if (at(close, "%}")) return close + 2;
    return at(close, "-%}") ? skip_space(text_, close + 3) : text_.npos;
  }

  void raw(size_t body) {
    advance(body);
    for (size_t tag = text_.find("{%", at_); tag != text_.npos; tag = text_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const size_t name = skip_space(text_, tag + 2 + (sign != 0 ? 1 : 0));
      if (!at(name, "endraw")) continue;
      const size_t end = closing(skip_space(text_, name + 6), "%}", false);
      if (end == text_.npos) continue;
      add_text(tag, sign, false);
      return advance(end);
    }
    fail("raw is not closed by endraw");
  }

  void in_tag(bool is_output) {
    std::string brackets;  // Open ones
    while (error_.empty()) {
      advance(skip_space(text_, at_));
      if (at_ >= text_.size()) return fail("a tag is not closed");
      if (brackets.empty()) {
        const size_t end = closing(at_, is_output ? "}}" : "%}", is_output);
        if (end != text_.npos) {
          add(is_output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
          return advance(end);
        }
      }
      const char c = text_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_word(c)) {
        size_t end = at_;
        while (end < text_.size() && is_word(text_[end])) ++end;
        add(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
        advance(end);
      } else if (c == '\'' || c == '"') {
        quoted_string(c);
      } else {
        sign(&brackets);
      }
    }
  }

  void sign(std::string* brackets) {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    std::string_view found;
    for (const std::string_view each : kLong) {
      if (at(at_, each)) found = each;
    }
    const char c = text_[at_];
    if (found.empty() && kShort.find(c) != kShort.npos) found = text_.substr(at_, 1);
    if (found.empty()) {
      size_t end = at_;
      next_character(text_, &end);
      return fail("unexpected character " + in_quotes(text_.substr(at_, end - at_)));
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets->push_back(c == '(' ? ')' : static_cast<char>(c + 2));
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty() || brackets->back() != c)
        return fail("unexpected " + std::string(1, c));
      brackets->pop_back();
    }
    add(TokenKind::kOperator, std::string(found));
    advance(at_ + found.size());
  }

  // Behind digits with single underscores between them, from `place`; `place` if there are none.
  size_t digits(size_t place, int base = 10) const {
    const auto is = [&](size_t i) {
      if (i >= text_.size()) return false;
      const char c = text_[i];
      if (base == 16) return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      return c >= '0' && c < '0' + base;
    };
    size_t end = place;
    while (is(end) || (end > place && at(end, "_") && is(end + 1))) ++end;
    return end;
  }

  void number() {
    const size_t begin = at_;
    size_t end = digits(begin);
    bool real = false;
    if (begin == 0 || text_[begin - 1] != '.') {
      size_t next = end;
      if (at(next, ".") && digits(next + 1) > next + 1) next = digits(next + 1);
      real = next > end;
      size_t power = next + 1;
      if (at(next, "e") || at(next, "E")) {
        if (sign_at(power) != 0) ++power;
        if (digits(power) > power) {
          next = digits(power);
          real = true;
        }
      }
      end = next;
    }
    if (!real) end = integer_end(begin);
    std::string text(text_.substr(begin, end - begin));
    std::erase(text, '_');
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance(end);
  }

  size_t integer_end(size_t begin) const {
    if (text_[begin] != '0') return digits(begin);
    const char mark = begin + 1 < text_.size() ? static_cast<char>(text_[begin + 1] | 32) : ' ';
    const int base = mark == 'b' ? 2 : mark == 'o' ? 8 : mark == 'x' ? 16 : 0;
    if (base != 0) {
      const size_t first = begin + 2 + (at(begin + 2, "_") ? 1 : 0);
      if (digits(first, base) > first) return digits(first, base);
    }
    size_t end = begin + 1;  // A number of zeros
    while (at(end, "0") || at(end, "_0")) end += at(end, "0") ? 1 : 2;
    return end;
  }

  void quoted_string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return fail("a string is not closed");
    std::string value;
    for (size_t i = at_ + 1; i < end && error_.empty();) {
      if (text_[i] != '\\') {
        value += text_[i++];
      } else {
        i = escape(i + 1, end, &value);
      }
    }
    if (!error_.empty()) return;
    add(TokenKind::kString, std::move(value));
    advance(end + 1);
  }

  // Unescapes what follows a backslash; returns the place behind it.
  size_t escape(size_t place, size_t end, std::string* value) {
    const char c = text_[place];
    constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t found = kNames.find(c); found != kNames.npos) {
      *value += kValues[found];
      return place + 1;
    }
    if (c == '\n') return place + 1;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t next = place;
      while (next < end && next < place + 3 && text_[next] >= '0' && text_[next] <= '7') {
        code = code * 8 + static_cast<char32_t>(text_[next++] - '0');
      }
      append_character(code, value);
      return next;
    }
    const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (length > 0) return coded(place + 1, length, end, value);
    if (c == 'N' || (static_cast<unsigned char>(c) & 0x80) != 0) {
      fail("the escape \\N and a backslash before a letter beyond ASCII are not supported");
      return end;
    }
    *value += '\\';
    *value += c;
    return place + 1;
  }

  size_t coded(size_t place, size_t length, size_t end, std::string* value) {
    uint64_t code = 0;
    for (size_t i = 0; i < length; ++i) {
      const char c = place + i < end ? text_[place + i] : ' ';
      const char lower = static_cast<char>(c | 32);
      const int digit = is_digit(c)                    ? c - '0'
                        : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                       : -1;
      if (digit < 0) {
        fail("an escape in a string is not complete");
        return end;
      }
      code = code * 16 + static_cast<uint64_t>(digit);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail("an escape in a string is no character");
      return end;
    }
    append_character(static_cast<char32_t>(code), value);
    return place + length;
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // What was read last ended a line
  std::vector<Token> tokens_;
  std::string error_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace spillway::jinja
