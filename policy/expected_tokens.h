// How many tokens a sequence is likely to generate, from those that have ended in this run. Most
// end long before the most that they may have, and a cache that counted with that would be half
// empty. Pure arithmetic; one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

// Ends are taken to come at a constant rate per generated token. That needs no lengths of sequences
// that have not ended, of which short ones would be seen first, and what ends by its limit does not
// count as an end. Before any has ended, one is counted for as many tokens as a sequence may have.
//
// What a sequence is expected to need is half of the mean that is left: sequences are at different
// points of their way, and not all need theirs at once. Where that is too little, some are set
// aside, which costs a transfer and nothing else.
class ExpectedTokens {
 public:
  void add(int64_t tokens, int64_t ends) {
    tokens_ += tokens;
    ends_ += ends;
  }

  // Tokens that a sequence of at most `most` tokens will need behind `generated` of them.
  int64_t left(int64_t generated, int64_t most) const {
    const double mean = static_cast<double>(tokens_ + most) / static_cast<double>(ends_ + 1);
    const auto likely = static_cast<int64_t>(kPart * mean);
    return std::clamp<int64_t>(likely, 0, most - std::min(generated, most));
  }

 private:
  static constexpr double kPart = 0.5;

  int64_t tokens_ = 0, ends_ = 0;
};

}  // namespace spillway
