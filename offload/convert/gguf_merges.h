// The merges of a SentencePiece vocabulary that has scores instead: every pair of pieces that
// together are a piece, ordered as transformers 4.57 does for GGUF files. Pure functions, any
// thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

constexpr size_t kMergedPieceBytesMax =
    256;  // Longer pieces are no words: nothing merges into them.

// Pieces with a higher score come first; pairs of one piece by the scores of their parts. Views
// into `pieces`, which are valid UTF-8, all different. REQUIRES: as many scores, none of them NaN.
std::vector<std::pair<std::string_view, std::string_view>> merges_of_scores(
    const std::vector<std::string>& pieces, const std::vector<double>& scores);

}  // namespace spillway
