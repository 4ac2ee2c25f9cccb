// Finds stop strings in a stream of text. Text is passed on as soon as it cannot be part of a stop
// string any more; nothing of a stop string or behind it is ever passed on, unless asked for.
//
// Which match counts: the one that ends first; of several that end there, the first in the list of
// stops. This is what a search of the whole text finds, however the text was cut into chunks.
//
// One per sequence. Thread rule: one thread. Time: O(text x stops), whatever both look like
// (Knuth-Morris-Pratt for each stop). Memory: O(bytes of the stops).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kStopsMax = 64;
constexpr size_t kStopBytesMax = 256;

class StopMatcher {
 public:
  struct Match {
    size_t stop;     // Index in the list
    uint64_t begin;  // Byte range in the whole text
    uint64_t end;
  };

  // Stops are literal. kInvalidArgument: too many, too long, empty, or not UTF-8 (of which it
  // follows that text in whole characters goes out in whole characters).
  static Result<StopMatcher> create(std::vector<std::string> stops, bool include_stop);

  // The text that is certain now. After a match: the text up to it (with include_stop: and the stop
  // itself), then nothing any more.
  std::string push(std::string_view text);

  // The text has ended: what was held back, unless a stop was found. REQUIRES: called once, last.
  std::string finish();

  const std::optional<Match>& match() const { return match_; }

 private:
  // One stop string and how much of it the text read so far ends with.
  struct Searcher {
    std::string stop;
    std::vector<uint16_t> border;  // [n]: longest proper prefix that is a suffix of the first n + 1
    size_t matched = 0;

    explicit Searcher(std::string text);
    void advance(char byte);
    bool found() const { return matched == stop.size(); }
  };

  StopMatcher() = default;
  // Feeds one byte; true if a stop ends with it.
  bool advance(char byte);

  std::vector<Searcher> searchers_;
  bool include_stop_ = false;
  std::string held_;   // The end of the text read so far that may begin a stop
  uint64_t read_ = 0;  // Bytes of text read so far
  std::optional<Match> match_;
};

}  // namespace spillway
