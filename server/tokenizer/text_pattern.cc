#include "server/tokenizer/text_pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <ctime>
#include <optional>
#include <utility>

#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

// A search may backtrack so often at no charge. Ordinary matches stay far below.
constexpr unsigned long kFreeRetries = 256;
// What searches may backtrack beyond that: about 10 ns each.
constexpr uint64_t kRetriesPerByte = 128;
constexpr uint64_t kRetriesLeast = uint64_t{1} << 20;
// A pattern may also look far ahead again and again without backtracking.
constexpr double kSecondsLeast = 1;
constexpr double kSecondsPerByte = 2e-6;
constexpr unsigned kSearchesPerLook = 256;  // At the clock

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string message_of(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = info != nullptr ? onig_error_code_to_str(text, code, info)
                                     : onig_error_code_to_str(text, code);
  return to_utf8({reinterpret_cast<const char*>(text), static_cast<size_t>(std::max(length, 0))});
}

bool names_punct(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<uint8_t>(letter)));
  return text.find("punct") != std::string::npos;
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeLimits {
  void operator()(OnigMatchParam* limits) const { onig_free_match_param(limits); }
};

}  // namespace

struct TextPattern::Compiled {
  OnigRegex regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

TextPattern::TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;
TextPattern::~TextPattern() = default;

Result<TextPattern> TextPattern::create(const PatternText& pattern) {
  if (pattern.text.empty()) return invalid_argument("the pattern is empty");
  if (pattern.text.size() > kPatternBytesMax) {
    return invalid_argument("the pattern has " + std::to_string(pattern.text.size()) +
                            " bytes, the limit is " + std::to_string(kPatternBytesMax));
  }
  TextPattern made;
  if (pattern.literal) {
    made.literal_ = pattern.text;
    return made;
  }
  if (names_punct(pattern.text)) {
    return invalid_argument(
        "the class punct in a pattern is not supported: versions of Oniguruma disagree about it");
  }
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  static const int initialized = onig_initialize(encodings, 1);
  if (initialized != ONIG_NORMAL) return invalid_argument(message_of(initialized, nullptr));
  made.compiled_ = std::make_unique<Compiled>();
  OnigErrorInfo info{};
  const OnigUChar* text = bytes_of(pattern.text);
  const int code = onig_new(&made.compiled_->regex, text, text + pattern.text.size(),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code == ONIG_NORMAL) return made;
  made.compiled_->regex = nullptr;
  return invalid_argument("the pattern is no regular expression: " + message_of(code, &info));
}

struct TextPattern::Search::State {
  std::unique_ptr<OnigRegion, FreeRegion> region;
  std::unique_ptr<OnigMatchParam, FreeLimits> limits;
  uint64_t retries_left = 0;
  unsigned searches = 0;
  double seconds_end = 0;
};

TextPattern::Search::Search(const TextPattern& pattern, size_t bytes)
    : pattern_(pattern), state_(std::make_unique<State>()) {
  if (pattern.compiled_ == nullptr) return;
  state_->region.reset(onig_region_new());
  state_->limits.reset(onig_new_match_param());
  onig_initialize_match_param(state_->limits.get());
  onig_set_match_stack_limit_size_of_match_param(state_->limits.get(), kPatternStackMax);
  state_->retries_left = kRetriesLeast + kRetriesPerByte * bytes;
  state_->seconds_end =
      processor_seconds() + kSecondsLeast + kSecondsPerByte * static_cast<double>(bytes);
}

TextPattern::Search::~Search() = default;

Status TextPattern::Search::check_time(std::string_view text, size_t at) {
  if (++state_->searches % kSearchesPerLook != 0 || processor_seconds() < state_->seconds_end) {
    return {};
  }
  return {Code::kCapacity, "the tokenizer's pattern takes too long at byte " + std::to_string(at) +
                               " of " + std::to_string(text.size()) +
                               "; shorten the text or send token ids"};
}

Status TextPattern::Search::search(std::string_view text, size_t from, PatternMatch* match,
                                   bool* found) {
  const OnigUChar* begin = bytes_of(text);
  const OnigUChar* end = begin + text.size();
  for (unsigned long retries = kFreeRetries;; retries *= 8) {
    if (retries > kFreeRetries) {
      if (retries > state_->retries_left) break;
      state_->retries_left -= retries;
    }
    onig_set_retry_limit_in_match_of_match_param(state_->limits.get(), retries);
    onig_set_retry_limit_in_search_of_match_param(state_->limits.get(), retries);
    const int code =
        onig_search_with_param(pattern_.compiled_->regex, begin, end, begin + from, end,
                               state_->region.get(), ONIG_OPTION_NONE, state_->limits.get());
    *found = code >= 0;
    if (code == ONIG_MISMATCH) return {};
    if (code >= 0) {
      *match = {static_cast<size_t>(state_->region->beg[0]),
                static_cast<size_t>(state_->region->end[0])};
      return {};
    }
    if (code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER) {
      continue;
    }
    if (code != ONIGERR_MATCH_STACK_LIMIT_OVER) {
      return {Code::kCapacity, "the tokenizer's pattern: " + message_of(code, nullptr)};
    }
    return {Code::kCapacity, "the text has a run of over " + std::to_string(kPatternStackMax) +
                                 " characters that the tokenizer's pattern holds at once; "
                                 "break it up or send token ids"};
  }
  return {Code::kCapacity, "the tokenizer's pattern tries too many ways to match at byte " +
                               std::to_string(from) + " of " + std::to_string(text.size()) +
                               "; shorten the text or send token ids"};
}

Status TextPattern::Search::find_all(std::string_view text, std::string_view plain,
                                     std::vector<PatternMatch>* matches) {
  if (pattern_.compiled_ == nullptr) {
    const std::string& literal = pattern_.literal_;
    for (size_t at = plain.find(literal); at != std::string_view::npos;
         at = plain.find(literal, at + literal.size())) {
      matches->push_back({at, at + literal.size()});
    }
    return {};
  }
  std::optional<size_t> last_end;
  for (size_t from = 0; from <= text.size();) {
    SPILLWAY_RETURN_IF_ERROR(check_time(text, from));
    PatternMatch match{};
    bool found = false;
    SPILLWAY_RETURN_IF_ERROR(search(text, from, &match, &found));
    if (!found) return {};
    if (match.begin == match.end && last_end == match.end) {
      if (from == text.size()) return {};
      ++from;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    from = match.end;
    last_end = match.end;
    matches->push_back(match);
  }
  return {};
}

}  // namespace spillway
