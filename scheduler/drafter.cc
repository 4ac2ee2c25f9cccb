#include "scheduler/drafter.h"

#include <algorithm>

namespace spillway {

namespace {

constexpr int64_t kMissesFree = 2;    // In a row, before drafts pause
constexpr int64_t kDoublingsMax = 4;  // Of a pause

// A sequence's tokens.
struct History {
  std::span<const int32_t> prompt, generated;

  int64_t size() const { return static_cast<int64_t>(prompt.size() + generated.size()); }
  int32_t operator[](int64_t index) const {
    const auto at = static_cast<size_t>(index);
    return at < prompt.size() ? prompt[at] : generated[at - prompt.size()];
  }
};

// Tokens up to `end` that agree with the last ones, at most kDraftMatchMax. REQUIRES: end < last.
int64_t match_before(const History& tokens, int64_t end) {
  const int64_t last = tokens.size() - 1, most = std::min(kDraftMatchMax, end + 1);
  int64_t found = 0;
  while (found < most && tokens[end - found] == tokens[last - found]) ++found;
  return found;
}

}  // namespace

void draft_by_ngrams(std::span<const int32_t> prompt, std::span<const int32_t> generated,
                     int64_t most, std::vector<int32_t>* draft) {
  const History tokens{prompt, generated};
  int64_t longest = kDraftMatchMin - 1, follows = 0;
  for (int64_t end = tokens.size() - 2; end >= longest && longest < kDraftMatchMax; --end) {
    const int64_t match = match_before(tokens, end);
    if (match <= longest) continue;
    longest = match;
    follows = end + 1;
  }
  if (longest < kDraftMatchMin) return;
  const size_t first = draft->size();
  for (int64_t i = 0; i < most; ++i) {
    const int64_t at = follows + i;
    draft->push_back(at < tokens.size()
                         ? tokens[at]
                         : (*draft)[first + static_cast<size_t>(at - tokens.size())]);
  }
}

Drafter::Drafter(std::span<const int32_t> prompt, int64_t tokens_max, int64_t generated_max)
    : prompt_(prompt), tokens_max_(tokens_max), length_(tokens_max) {
  generated_.reserve(static_cast<size_t>(generated_max));
}

void Drafter::draft(int64_t most, std::vector<int32_t>* draft) {
  if (most <= 0) return;
  if (pause_ > 0) {
    --pause_;
    return;
  }
  draft_by_ngrams(prompt_, generated_, std::min(most, length_), draft);
}

void Drafter::judge(int64_t drafted, int64_t accepted) {
  if (accepted > 0) {
    misses_ = 0;
    // A draft that was cut short says nothing against longer ones.
    const int64_t next = accepted == drafted ? std::max(length_, 2 * drafted) : accepted + 1;
    length_ = std::min(tokens_max_, next);
    return;
  }
  length_ = std::max<int64_t>(1, length_ / 2);
  if (++misses_ > kMissesFree) {
    pause_ = int64_t{1} << std::min(misses_ - kMissesFree - 1, kDoublingsMax);
  }
}

}  // namespace spillway
