// Finds added tokens in text: of all that begin leftmost the longest, as the Aho-Corasick automaton
// of PyPI's `tokenizers` does.
//
// Owned by a Tokenizer. Thread rule: const after the constructor, any thread. Time: O(bytes) times
// the longest beginning that text and tokens share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/tokenizer/tokenizer_files.h"

namespace spillway {

class AddedTokenFinder {
 public:
  // A token and the text that it is searched as (its own, or normalized). Of equal texts the first
  // counts. REQUIRES: no text is empty.
  struct Entry {
    std::string text;
    AddedToken token;
  };
  explicit AddedTokenFinder(std::vector<Entry> entries);

  // A part of a text: a token, or the text between tokens.
  struct Part {
    size_t begin;
    size_t end;
    int32_t id;  // -1: text
  };

  // The parts of `text` in their order. Special tokens stay text unless `special`; what they cover
  // holds no other token. A token takes the whitespace beside it that it says.
  std::vector<Part> split(std::string_view text, bool special) const;

 private:
  // The longest token at the start of `text`; null: none.
  const Entry* longest(std::string_view text) const;

  std::vector<Entry> entries_;         // By text
  std::array<uint32_t, 257> first_{};  // Those with first byte b: [first_[b], first_[b + 1])
  bool any_plain_ = false;             // One of them is not special.
};

}  // namespace spillway
