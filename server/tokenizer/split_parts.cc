#include "server/tokenizer/split_parts.h"

#include <algorithm>

namespace spillway {
namespace {

using Spans = std::vector<PieceList::Span>;

// Of each match the text in front of it is part; of matches in a row, of the first alone.
Spans merged_with_previous(const std::vector<SplitPart>& parts) {
  Spans spans;
  bool previous = false;
  for (const SplitPart& part : parts) {
    if (part.matches && !previous && !spans.empty()) {
      spans.back().end = part.end;
    } else {
      spans.push_back({part.begin, part.end});
    }
    previous = part.matches;
  }
  return spans;
}

// The same from behind.
Spans merged_with_next(const std::vector<SplitPart>& parts) {
  Spans spans;
  bool next = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->matches && !next && !spans.empty()) {
      spans.back().begin = part->begin;
    } else {
      spans.push_back({part->begin, part->end});
    }
    next = part->matches;
  }
  std::reverse(spans.begin(), spans.end());
  return spans;
}

Spans contiguous(const std::vector<SplitPart>& parts) {
  Spans spans;
  bool previous = false;
  for (const SplitPart& part : parts) {
    if (part.matches == previous && !spans.empty()) {
      spans.back().end = part.end;
    } else {
      spans.push_back({part.begin, part.end});
    }
    previous = part.matches;
  }
  return spans;
}

Spans separate(const std::vector<SplitPart>& parts, bool with_matches) {
  Spans spans;
  for (const SplitPart& part : parts) {
    if (with_matches || !part.matches) spans.push_back({part.begin, part.end});
  }
  return spans;
}

Spans spans_of(const std::vector<SplitPart>& parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      return separate(parts, false);
    case SplitBehavior::kMergedWithPrevious:
      return merged_with_previous(parts);
    case SplitBehavior::kMergedWithNext:
      return merged_with_next(parts);
    case SplitBehavior::kContiguous:
      return contiguous(parts);
    case SplitBehavior::kIsolated:
      break;
  }
  return separate(parts, true);
}

}  // namespace

std::vector<SplitPart> parts_of(const std::vector<PatternMatch>& matches, size_t bytes) {
  std::vector<SplitPart> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t done = 0;
  for (const PatternMatch& match : matches) {
    if (done != match.begin) parts.push_back({done, match.begin, false});
    parts.push_back({match.begin, match.end, true});
    done = match.end;
  }
  if (done != bytes) parts.push_back({done, bytes, false});
  return parts;
}

void append_pieces(const std::vector<SplitPart>& parts, SplitBehavior behavior, size_t offset,
                   std::vector<PieceList::Span>* spans) {
  for (const PieceList::Span& span : spans_of(parts, behavior)) {
    if (span.begin < span.end) spans->push_back({span.begin + offset, span.end + offset});
  }
}

}  // namespace spillway
