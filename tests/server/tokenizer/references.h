// The definitions of what the tokenizer's fast code does, as plainly as they can be written; tests
// and fuzz targets compare with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/tokenizer/stop_matcher.h"
#include "server/tokenizer/tokenizer_files.h"

namespace spillway {

// BPE: again and again the leftmost pair of the lowest rank.
inline std::vector<int32_t> merge_naively(std::vector<int32_t> ids,
                                          const std::vector<Merge>& merges) {
  for (;;) {
    size_t best = merges.size();
    size_t where = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left != ids[i] || merges[rank].right != ids[i + 1]) continue;
        best = rank;
        where = i;
      }
    }
    if (best == merges.size()) return ids;
    ids[where] = merges[best].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

// The match that counts: lowest end, then first in the list.
inline std::optional<StopMatcher::Match> search_stops(const std::string& text,
                                                      const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t i = 0; i < stops.size(); ++i) {
      const size_t bytes = stops[i].size();
      if (bytes <= end && text.compare(end - bytes, bytes, stops[i]) == 0) {
        return StopMatcher::Match{i, end - bytes, end};
      }
    }
  }
  return std::nullopt;
}

}  // namespace spillway
