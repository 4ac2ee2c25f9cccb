#include "server/tokenizer/added_tokens.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <utility>

#include "server/tokenizer/character_classes.h"

namespace spillway {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t begin = text.size() - 1;
  while (begin > 0 && U8_IS_TRAIL(text[begin])) --begin;
  return is_word(next_character(text, &begin));
}

bool starts_with_word(std::string_view text) {
  size_t next = 0;
  return !text.empty() && is_word(next_character(text, &next));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.text < b.text; });
  const auto twin = std::unique(entries_.begin(), entries_.end(),
                                [](const Entry& a, const Entry& b) { return a.text == b.text; });
  entries_.erase(twin, entries_.end());
  for (const Entry& entry : entries_) {
    ++first_[size_t{static_cast<uint8_t>(entry.text[0])} + 1];
    any_plain_ = any_plain_ || !entry.token.special;
  }
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

const AddedTokenFinder::Entry* AddedTokenFinder::longest(std::string_view text) const {
  const auto first = static_cast<uint8_t>(text[0]);
  auto begin = entries_.begin() + first_[first];
  auto end = entries_.begin() + first_[size_t{first} + 1];
  const Entry* found = nullptr;
  // All in [begin, end) begin with the first `depth` bytes of the text; the shortest is in front.
  for (size_t depth = 1; begin != end; ++depth) {
    if (begin->text.size() == depth) found = &*begin++;
    if (depth == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[depth]);
    begin = std::lower_bound(begin, end, byte, [depth](const Entry& entry, uint8_t value) {
      return static_cast<uint8_t>(entry.text[depth]) < value;
    });
    end = std::upper_bound(begin, end, byte, [depth](uint8_t value, const Entry& entry) {
      return value < static_cast<uint8_t>(entry.text[depth]);
    });
  }
  return found;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text,
                                                            bool special) const {
  std::vector<Part> parts;
  if (text.empty()) return parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && (special || any_plain_);) {
    const Entry* entry = longest(text.substr(at));
    if (entry == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + entry->text.size();
    at = end;
    const AddedToken& token = entry->token;
    if (token.special && !special) continue;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (token.strip_left) begin = std::max(done, trailing_space_begin(text.substr(0, begin)));
    if (token.strip_right) end += leading_space_end(text.substr(end));
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace spillway
