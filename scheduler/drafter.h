// Drafts of a sequence's next tokens, from its own n-grams: where its last tokens occurred before,
// in the prompt or in what it has generated, the tokens that followed them there. (Prompt lookup
// decoding; vLLM's speculative decoding by "ngram".) Answers that repeat their prompt, such as
// summaries and edits of code, are drafted well, others rarely.
//
// A draft is computed behind the sequence's own token in one sweep, and its tokens count as long as
// they are those that are sampled anyway (Leviathan et al. 2022, arXiv 2211.17192): drafts change
// the time that an answer takes and nothing of it.
//
// How long a draft is follows from how the last ones fared. It begins with the most tokens; one of
// which all come true is followed by one twice as long, one of which some do by one of a token more
// than these, and one of which none does by half of it. After several of the last kind in a row the
// sequence goes without for 1, 2, 4, ... up to 16 sweeps: where nothing repeats, rows for nothing
// are rare.
//
// Owned by a sequence. Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

// Tokens that must agree in front of a draft: as many as do up to the most, at least the fewest.
constexpr int64_t kDraftMatchMin = 2, kDraftMatchMax = 4;

// Most rows of a sweep in which decode steps have drafts behind them: beyond, a row costs
// arithmetic that nothing hides. Where weights are read in each sweep it has more time for that.
constexpr int64_t kDraftRows = 8, kDraftRowsStreaming = 32;

// Appends up to `most` tokens that followed the latest of the longest matches of the sequence's
// end, which is `prompt` and `generated`; a match that reaches the end goes on with the draft
// itself.
void draft_by_ngrams(std::span<const int32_t> prompt, std::span<const int32_t> generated,
                     int64_t most, std::vector<int32_t>* draft);

class Drafter {
 public:
  // `tokens_max`: most tokens of a draft, at least 1. `generated_max`: that will be added; memory
  // for them is reserved. The prompt outlives it.
  Drafter(std::span<const int32_t> prompt, int64_t tokens_max, int64_t generated_max);

  int64_t tokens_max() const { return tokens_max_; }

  void add(int32_t token) { generated_.push_back(token); }

  // Appends a draft of up to `most` tokens for the next sweep; none, if nothing matches, or if it
  // goes without for now.
  void draft(int64_t most, std::vector<int32_t>* draft);

  // After the sweep of a draft of `drafted` tokens, the first `accepted` of which came true.
  void judge(int64_t drafted, int64_t accepted);

 private:
  const std::span<const int32_t> prompt_;
  const int64_t tokens_max_;
  std::vector<int32_t> generated_;
  int64_t length_;      // Of the next draft, at most
  int64_t misses_ = 0;  // Drafts in a row of which no token came true
  int64_t pause_ = 0;   // Sweeps that it goes without
};

}  // namespace spillway
