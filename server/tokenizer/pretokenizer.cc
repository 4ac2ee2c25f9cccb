#include "server/tokenizer/pretokenizer.h"

#include <optional>
#include <utility>

#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/character_classes.h"
#include "server/tokenizer/gpt2_pattern.h"
#include "server/tokenizer/newer_characters.h"
#include "server/tokenizer/split_parts.h"
#include "server/tokenizer/text_pattern.h"

namespace spillway {
namespace {

using Kind = PreTokenizerStep::Kind;
using Spans = std::vector<PieceList::Span>;
using ClassTest = bool (*)(char32_t);

// Every character of a class as a match of its own.
std::vector<PatternMatch> characters_in(std::string_view text, ClassTest in_class) {
  std::vector<PatternMatch> matches;
  for (size_t next = 0; next < text.size();) {
    const size_t begin = next;
    if (in_class(next_character(text, &next))) matches.push_back({begin, next});
  }
  return matches;
}

// Matches of \w+|[^\w\s]+: runs of word characters, and of what is neither those nor whitespace.
std::vector<PatternMatch> words_in(std::string_view text) {
  std::vector<PatternMatch> matches;
  bool in_word = false;
  for (size_t next = 0; next < text.size();) {
    const size_t begin = next;
    const char32_t point = next_character(text, &next);
    if (is_space(point)) continue;
    const bool word = is_word(point);
    if (!matches.empty() && matches.back().end == begin && in_word == word) {
      matches.back().end = next;
    } else {
      matches.push_back({begin, next});
    }
    in_word = word;
  }
  return matches;
}

// Replaces the pieces by others of the same text.
void set_spans(Spans spans, PieceList* pieces) {
  pieces->at_start = pieces->at_start && !spans.empty() && !pieces->spans.empty() &&
                     spans.front().begin == pieces->spans.front().begin;
  pieces->spans = std::move(spans);
}

// Builds the text anew: `write` appends what becomes of a piece; it is told whether that is the
// first piece of a whole text.
template <class Write>
void rewrite(PieceList* pieces, Write write) {
  std::string text;
  text.reserve(pieces->text.size() + pieces->spans.size());
  bool first = pieces->at_start;
  for (PieceList::Span& span : pieces->spans) {
    const size_t begin = text.size();
    write(pieces->piece(span), first, &text);
    span = {begin, text.size()};
    first = false;
  }
  pieces->text = std::move(text);
}

void cut_as_gpt2(PieceList* pieces) {
  Spans spans;
  for (const PieceList::Span& span : pieces->spans) {
    const std::string_view piece = pieces->piece(span);
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = next_piece_end(piece, begin);
      spans.push_back({span.begin + begin, span.begin + end});
      begin = end;
    }
  }
  set_spans(std::move(spans), pieces);
}

void add_space_in_front(PieceList* pieces) {
  rewrite(pieces, [](std::string_view piece, bool, std::string* text) {
    if (piece.front() != ' ') text->push_back(' ');
    text->append(piece);
  });
}

void write_as_alphabet(PieceList* pieces) {
  rewrite(pieces, [](std::string_view piece, bool, std::string* text) {
    for (const char byte : piece) *text += symbol_of_byte(static_cast<uint8_t>(byte));
  });
}

void cut_by_class(ClassTest in_class, SplitBehavior behavior, PieceList* pieces) {
  Spans spans;
  for (const PieceList::Span& span : pieces->spans) {
    const std::string_view piece = pieces->piece(span);
    append_pieces(parts_of(characters_in(piece, in_class), piece.size()), behavior, span.begin,
                  &spans);
  }
  set_spans(std::move(spans), pieces);
}

void cut_into_words(PieceList* pieces) {
  Spans spans;
  for (const PieceList::Span& span : pieces->spans) {
    for (const PatternMatch& match : words_in(pieces->piece(span))) {
      spans.push_back({span.begin + match.begin, span.begin + match.end});
    }
  }
  set_spans(std::move(spans), pieces);
}

void replace_spaces(const PreTokenizerStep& step, PieceList* pieces) {
  const std::string& mark = step.replacement;
  rewrite(pieces, [&](std::string_view piece, bool first, std::string* text) {
    const bool begins_so = piece.front() == ' ' || piece.substr(0, mark.size()) == mark;
    const bool wanted =
        step.prepend == PrependScheme::kAlways || (step.prepend == PrependScheme::kFirst && first);
    if (wanted && !begins_so) *text += mark;
    for (const char byte : piece) {
      if (byte == ' ') {
        *text += mark;
      } else {
        text->push_back(byte);
      }
    }
  });
}

}  // namespace

struct PreTokenizer::Step {
  PreTokenizerStep what;
  bool last = false;
  bool gpt2 = false;                   // kSplit with GPT-2's pattern
  std::optional<TextPattern> pattern;  // kSplit, kMetaspace

  Status apply(PieceList* pieces) const;
  Status cut_by_pattern(SplitBehavior behavior, bool invert, PieceList* pieces) const;
};

Status PreTokenizer::Step::cut_by_pattern(SplitBehavior behavior, bool invert,
                                          PieceList* pieces) const {
  std::string older;
  const bool any = replace_newer_characters(pieces->text, &older);
  const std::string_view searched = any ? older : pieces->text;
  TextPattern::Search search(*pattern, pieces->text.size());
  Spans spans;
  std::vector<PatternMatch> matches;
  for (const PieceList::Span& span : pieces->spans) {
    const std::string_view piece = pieces->piece(span);
    matches.clear();
    SPILLWAY_RETURN_IF_ERROR(
        search.find_all(searched.substr(span.begin, piece.size()), piece, &matches));
    std::vector<SplitPart> parts = parts_of(matches, piece.size());
    if (invert) {
      for (SplitPart& part : parts) part.matches = !part.matches;
    }
    append_pieces(parts, behavior, span.begin, &spans);
  }
  set_spans(std::move(spans), pieces);
  return {};
}

Status PreTokenizer::Step::apply(PieceList* pieces) const {
  switch (what.kind) {
    case Kind::kByteLevel:
      if (what.add_prefix_space) add_space_in_front(pieces);
      if (what.use_regex) cut_as_gpt2(pieces);
      if (!last) write_as_alphabet(pieces);
      return {};
    case Kind::kSplit:
      if (!gpt2) return cut_by_pattern(what.behavior, what.invert, pieces);
      cut_as_gpt2(pieces);
      return {};
    case Kind::kDigits:
      cut_by_class(is_number,
                   what.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                   pieces);
      return {};
    case Kind::kMetaspace:
      replace_spaces(what, pieces);
      if (!what.split) return {};
      return cut_by_pattern(SplitBehavior::kMergedWithNext, false, pieces);
    case Kind::kWhitespace:
      cut_into_words(pieces);
      return {};
    case Kind::kWhitespaceSplit:
      cut_by_class(is_space, SplitBehavior::kRemoved, pieces);
      return {};
    case Kind::kPunctuation:
      cut_by_class(is_punctuation, what.behavior, pieces);
      return {};
  }
  return {};
}

PieceList::PieceList(std::string whole, bool starts) : text(std::move(whole)), at_start(starts) {
  if (!text.empty()) spans.push_back({0, text.size()});
}

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::create(const std::vector<PreTokenizerStep>& steps) {
  PreTokenizer made;
  for (size_t i = 0; i < steps.size(); ++i) {
    auto step = std::make_unique<Step>();
    step->what = steps[i];
    step->last = i + 1 == steps.size();
    const PreTokenizerStep& what = step->what;
    step->gpt2 = what.kind == Kind::kSplit && !what.pattern.literal && !what.invert &&
                 what.behavior == SplitBehavior::kIsolated && what.pattern.text == kGpt2Pattern;
    if (what.kind == Kind::kSplit) {
      SPILLWAY_ASSIGN_OR_RETURN(step->pattern, TextPattern::create(what.pattern));
    } else if (what.kind == Kind::kMetaspace) {
      SPILLWAY_ASSIGN_OR_RETURN(step->pattern, TextPattern::create({what.replacement, true}));
    }
    made.ends_in_bytes_ = step->last && what.kind == Kind::kByteLevel;
    made.steps_.push_back(std::move(step));
  }
  return made;
}

Status PreTokenizer::cut(PieceList* pieces) const {
  for (const auto& step : steps_) {
    if (pieces->spans.empty()) return {};
    SPILLWAY_RETURN_IF_ERROR(step->apply(pieces));
  }
  return {};
}

}  // namespace spillway
