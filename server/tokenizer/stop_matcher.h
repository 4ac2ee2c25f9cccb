// Finds stop strings in a stream of text. Text is passed on as soon as it cannot be part of a stop
// string any more; a stop string and the text behind it are never passed on, unless asked for.
//
// The match that ends first counts; of several that end there, the first in the list of stops. A
// search of the whole text finds the same one, however the text was cut into chunks.
//
// One per sequence. Thread rule: one thread. Time: O(text x stops), for any content
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

  // Stops are literal. kInvalidArgument: too many, too long, empty, or not UTF-8 (valid stops
  // ensure that text in whole characters is passed on in whole characters).
  static Result<StopMatcher> create(std::vector<std::string> stops, bool include_stop);

  // Returns the text that is certain now. After a match: the text up to it (with include_stop: and
  // the stop itself), then always empty.
  std::string push(std::string_view text);

  // Ends the text; returns the held-back text, unless a stop was found. REQUIRES: called once,
  // last.
  std::string finish();

  const std::optional<Match>& match() const { return match_; }

 private:
  // One stop string and the length of its prefix that the text read so far ends with.
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
