#include "server/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/tokenizer/character_classes.h"
#include "server/tokenizer/newer_characters.h"
#include "server/tokenizer/text_pattern.h"

namespace spillway {
namespace {

// Of normalized text: ICU counts in int32, and a hostile Replace would fill the memory.
constexpr size_t kGrowthMax = 16;
constexpr size_t kTextBytesLeast = size_t{1} << 20;
constexpr size_t kTextBytesMax = size_t{1} << 30;

using Kind = NormalizerStep::Kind;

const icu::Normalizer2* normal_form(Kind kind, UErrorCode* error) {
  switch (kind) {
    case Kind::kNfc:
      return icu::Normalizer2::getNFCInstance(*error);
    case Kind::kNfd:
      return icu::Normalizer2::getNFDInstance(*error);
    case Kind::kNfkc:
      return icu::Normalizer2::getNFKCInstance(*error);
    case Kind::kNfkd:
      return icu::Normalizer2::getNFKDInstance(*error);
    default:
      return nullptr;
  }
}

std::string lower_case(const std::string& text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t next = 0; next < text.size();) append_lower_case(next_character(text, &next), &lower);
  return lower;
}

std::string stripped(const std::string& text, bool left, bool right) {
  const size_t end = right ? trailing_space_begin(text) : text.size();
  const size_t begin = left ? leading_space_end(std::string_view(text).substr(0, end)) : 0;
  return text.substr(begin, end - begin);
}

}  // namespace

struct Normalizer::Step {
  NormalizerStep what;
  std::optional<TextPattern> pattern;  // kReplace
  // The characters of Unicode 9, and a normal form of them; null for other kinds.
  std::unique_ptr<icu::UnicodeSet> known;
  std::unique_ptr<icu::FilteredNormalizer2> form;

  // `bytes_max`: what the result may have; a little more is for the caller to refuse.
  Result<std::string> apply(std::string text, size_t bytes_max) const;
  Result<std::string> normal(const std::string& text) const;
  Result<std::string> replace(const std::string& text, size_t bytes_max) const;
};

Result<std::string> Normalizer::Step::normal(const std::string& text) const {
  UErrorCode error = U_ZERO_ERROR;
  std::string target;
  icu::StringByteSink<std::string> sink(&target);
  form->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                      nullptr, error);
  if (U_SUCCESS(error)) return target;
  return Status(Code::kCapacity,
                std::string("the text cannot be normalized: ") + u_errorName(error));
}

Result<std::string> Normalizer::Step::replace(const std::string& text, size_t bytes_max) const {
  std::string older;
  const bool any = replace_newer_characters(text, &older);
  std::vector<PatternMatch> matches;
  TextPattern::Search search(*pattern, text.size());
  SPILLWAY_RETURN_IF_ERROR(search.find_all(any ? older : text, text, &matches));
  if (matches.empty()) return text;
  std::string target;
  size_t done = 0;
  for (const PatternMatch& match : matches) {
    target.append(text, done, match.begin - done).append(what.content);
    done = match.end;
    if (target.size() > bytes_max) break;
  }
  return target.append(text, done);
}

Result<std::string> Normalizer::Step::apply(std::string text, size_t bytes_max) const {
  switch (what.kind) {
    case Kind::kPrepend:
      return text.insert(0, what.content);
    case Kind::kReplace:
      return replace(text, bytes_max);
    case Kind::kLowercase:
      return lower_case(text);
    case Kind::kStrip:
      return stripped(text, what.left, what.right);
    default:
      return normal(text);
  }
}

Normalizer::Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer& Normalizer::operator=(Normalizer&&) noexcept = default;
Normalizer::~Normalizer() = default;

Result<Normalizer> Normalizer::create(const std::vector<NormalizerStep>& steps) {
  Normalizer made;
  for (const NormalizerStep& what : steps) {
    auto step = std::make_unique<Step>();
    step->what = what;
    if (what.kind == Kind::kReplace) {
      SPILLWAY_ASSIGN_OR_RETURN(step->pattern, TextPattern::create(what.pattern));
    }
    UErrorCode error = U_ZERO_ERROR;
    if (const icu::Normalizer2* form = normal_form(what.kind, &error)) {
      step->known = std::make_unique<icu::UnicodeSet>(u"[:Age=9.0:]", error);
      step->known->freeze();
      step->form = std::make_unique<icu::FilteredNormalizer2>(*form, *step->known);
    }
    if (U_FAILURE(error)) {
      return invalid_argument(std::string("ICU has no data for normal forms: ") +
                              u_errorName(error));
    }
    made.steps_.push_back(std::move(step));
  }
  return made;
}

Result<std::string> Normalizer::normalize(std::string text) const {
  const size_t bytes_max = std::min(kGrowthMax * text.size() + kTextBytesLeast, kTextBytesMax);
  for (const auto& step : steps_) {
    if (text.empty()) return text;
    if (text.size() > bytes_max) break;
    SPILLWAY_ASSIGN_OR_RETURN(text, step->apply(std::move(text), bytes_max));
  }
  if (steps_.empty() || text.size() <= bytes_max) return text;
  return Status(Code::kCapacity, "the text has more than " + std::to_string(bytes_max) +
                                     " bytes when it is normalized; send less at once");
}

}  // namespace spillway
