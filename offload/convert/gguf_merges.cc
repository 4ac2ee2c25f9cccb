#include "offload/convert/gguf_merges.h"

#include <algorithm>
#include <unordered_map>

#include "kernels/base/check.h"

namespace spillway {

namespace {

struct ScoredMerge {
  std::string_view left;
  std::string_view right;
  double score = 0;  // Of the piece they become.
  double left_score = 0;
  double right_score = 0;
};

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> merges_of_scores(
    const std::vector<std::string>& pieces, const std::vector<double>& scores) {
  SPILLWAY_CHECK(pieces.size() == scores.size());
  std::unordered_map<std::string_view, double> score_of;
  score_of.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) score_of.emplace(pieces[i], scores[i]);
  std::vector<ScoredMerge> merges;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string_view piece = pieces[i];
    if (piece.size() > kMergedPieceBytesMax) continue;
    const size_t first = merges.size();
    for (size_t at = 1; at < piece.size(); ++at) {
      if (!starts_character(piece[at])) continue;
      const auto left = score_of.find(piece.substr(0, at));
      if (left == score_of.end()) continue;
      const auto right = score_of.find(piece.substr(at));
      if (right == score_of.end()) continue;
      merges.push_back(
          {piece.substr(0, at), piece.substr(at), scores[i], left->second, right->second});
    }
    std::stable_sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
                     [](const ScoredMerge& a, const ScoredMerge& b) {
                       return std::pair(a.left_score, a.right_score) >
                              std::pair(b.left_score, b.right_score);
                     });
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const ScoredMerge& a, const ScoredMerge& b) { return a.score > b.score; });
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  pairs.reserve(merges.size());
  for (const ScoredMerge& merge : merges) pairs.emplace_back(merge.left, merge.right);
  return pairs;
}

}  // namespace spillway
