// A pattern of tokenizer.json: a text taken literally, or a regular expression of Oniguruma, the
// engine that PyPI's `tokenizers` uses.
//
// Owned by the step that uses it. Thread rule: const after create(), any thread. Time is bounded
// whatever pattern and text are: each search has a limit of backtracking that grows from a fund,
// which is proportional to the text, and processor time has a limit.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/tokenizer/tokenizer_steps.h"

namespace spillway {

constexpr size_t kPatternBytesMax = 16384;
// Characters that one match may have to remember; 48 bytes each. A run of a million letters.
constexpr unsigned kPatternStackMax = 1u << 20;

struct PatternMatch {
  size_t begin;  // Bytes
  size_t end;
};

class TextPattern {
 public:
  // kInvalidArgument: not a regular expression, too long, or [[:punct:]], of which versions of
  // Oniguruma disagree.
  static Result<TextPattern> create(const PatternText& pattern);

  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;
  ~TextPattern();

  // A search through several texts, which share its limits. One thread, one at a time.
  class Search {
   public:
    // `bytes`: of all texts together.
    Search(const TextPattern& pattern, size_t bytes);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

    // Appends all matches in `text` from left to right, none overlapping; an empty one never
    // follows another match directly. For a literal pattern `plain` is searched, else `text`,
    // which is `plain` with newer characters replaced. kCapacity: a limit is reached.
    Status find_all(std::string_view text, std::string_view plain,
                    std::vector<PatternMatch>* matches);

   private:
    struct State;
    Status search(std::string_view text, size_t from, PatternMatch* match, bool* found);
    Status check_time(std::string_view text, size_t at);
    const TextPattern& pattern_;
    std::unique_ptr<State> state_;
  };

 private:
  TextPattern();
  struct Compiled;
  std::string literal_;                 // Empty: a regular expression
  std::unique_ptr<Compiled> compiled_;  // Null: a literal
};

}  // namespace spillway
