#include "server/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace spillway {

StopMatcher::Searcher::Searcher(std::string text) : stop(std::move(text)), border(stop.size(), 0) {
  for (size_t i = 1, length = 0; i < stop.size(); ++i) {
    while (length > 0 && stop[i] != stop[length]) length = border[length - 1];
    if (stop[i] == stop[length]) ++length;
    border[i] = static_cast<uint16_t>(length);
  }
}

void StopMatcher::Searcher::advance(char byte) {
  while (matched > 0 && stop[matched] != byte) matched = border[matched - 1];
  if (stop[matched] == byte) ++matched;
}

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops, bool include_stop) {
  if (stops.size() > kStopsMax) {
    return invalid_argument(std::to_string(stops.size()) + " stop strings, at most " +
                            std::to_string(kStopsMax) + " are allowed");
  }
  StopMatcher matcher;
  matcher.include_stop_ = include_stop;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string name = "stop string " + std::to_string(i);
    if (stops[i].empty()) return invalid_argument(name + " is empty");
    if (stops[i].size() > kStopBytesMax) {
      return invalid_argument(name + " has " + std::to_string(stops[i].size()) +
                              " bytes, at most " + std::to_string(kStopBytesMax) + " are allowed");
    }
    if (!is_valid_utf8(stops[i])) return invalid_argument(name + " is not UTF-8");
    matcher.searchers_.emplace_back(std::move(stops[i]));
  }
  return matcher;
}

bool StopMatcher::advance(char byte) {
  ++read_;
  for (size_t i = 0; i < searchers_.size(); ++i) {
    Searcher& searcher = searchers_[i];
    searcher.advance(byte);
    // The remaining searchers miss the byte; after a match they are not used again.
    if (!searcher.found()) continue;
    match_ = Match{i, read_ - searcher.stop.size(), read_};
    return true;
  }
  return false;
}

std::string StopMatcher::push(std::string_view text) {
  if (match_) return {};
  std::string certain = std::exchange(held_, {});
  const uint64_t first = read_ - certain.size();  // Position of certain[0] in the whole text.
  for (size_t i = 0; i < text.size(); ++i) {
    if (!advance(text[i])) continue;
    certain.append(text.substr(0, i + 1));
    certain.resize((include_stop_ ? match_->end : match_->begin) - first);
    return certain;
  }
  certain.append(text);
  size_t held = 0;
  for (const Searcher& searcher : searchers_) held = std::max(held, searcher.matched);
  held_ = certain.substr(certain.size() - held);
  certain.resize(certain.size() - held);
  return certain;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace spillway
