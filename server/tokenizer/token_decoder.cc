#include "server/tokenizer/token_decoder.h"

#include <algorithm>
#include <utility>

#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/newer_characters.h"

namespace spillway {
namespace {

using Kind = DecoderStep::Kind;

std::string replaced(const std::string& text, const std::vector<PatternMatch>& matches,
                     const std::string& content) {
  std::string target;
  size_t done = 0;
  for (const PatternMatch& match : matches) {
    target.append(text, done, match.begin - done).append(content);
    done = match.end;
  }
  return target.append(text, done);
}

}  // namespace

StartOfText::StartOfText(const StartRule& rule, bool done)
    : rule_(rule), done_(done || rule.empty()) {}

void StartOfText::append(std::string_view bytes, bool added, std::string* text) {
  if (done_) {
    text->append(bytes);
    return;
  }
  if (rule_.first_token) {
    done_ = true;
    std::copy_if(bytes.begin(), bytes.end(), std::back_inserter(*text),
                 [&](char byte) { return added || byte != rule_.character; });
    return;
  }
  while (rule_.count > 0 && !bytes.empty() && bytes.front() == rule_.character) {
    bytes.remove_prefix(1);
    --rule_.count;
  }
  done_ = rule_.count == 0 || !bytes.empty();
  text->append(bytes);
}

Result<TokenDecoder> TokenDecoder::create(const std::vector<DecoderStep>& steps) {
  TokenDecoder made;
  for (const DecoderStep& step : steps) SPILLWAY_RETURN_IF_ERROR(made.add_step(step));
  return made;
}

Status TokenDecoder::add_step(const DecoderStep& step) {
  const bool bytes_seen = std::any_of(steps_.begin(), steps_.end(), [](const DecoderStep& earlier) {
    return earlier.kind == Kind::kByteFallback || earlier.kind == Kind::kByteLevel;
  });
  if (step.kind == Kind::kFuse) {
    fused_ = true;
    return {};
  }
  if (step.kind == Kind::kStrip && (fused_ || bytes_seen)) {
    if (step.start > 0) start_rule_ = {step.content.front(), step.start, false};
    return {};
  }
  if (fused_ || bytes_seen) {
    return invalid_argument(
        "a step behind Fuse, ByteFallback or ByteLevel is not supported, "
        "only Fuse and Strip are");
  }
  if (step.kind == Kind::kMetaspace && step.prepended) start_rule_ = {' ', 0, true};
  std::optional<TextPattern> pattern;
  if (step.kind == Kind::kReplace) {
    SPILLWAY_ASSIGN_OR_RETURN(pattern, TextPattern::create(step.pattern));
  } else if (step.kind == Kind::kMetaspace) {
    SPILLWAY_ASSIGN_OR_RETURN(pattern, TextPattern::create({step.content, true}));
  }
  patterns_.push_back(std::move(pattern));
  steps_.push_back(step);
  return {};
}

Result<std::string> TokenDecoder::bytes_of(const std::string& piece, bool added) const {
  std::string text = piece;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const TextPattern* pattern = patterns_[i] ? &*patterns_[i] : nullptr;
    SPILLWAY_ASSIGN_OR_RETURN(text, apply(steps_[i], pattern, std::move(text), added));
  }
  return text;
}

Result<std::string> TokenDecoder::apply(const DecoderStep& step, const TextPattern* pattern,
                                        std::string text, bool added) const {
  switch (step.kind) {
    case Kind::kByteLevel: {
      auto bytes = added ? std::nullopt : bytes_of_piece(text);
      return bytes ? std::move(*bytes) : std::move(text);
    }
    case Kind::kByteFallback:
      if (const auto byte = byte_of_token(text)) return std::string(1, static_cast<char>(*byte));
      return text;
    case Kind::kStrip: {  // In front of each token
      size_t begin = 0;
      while (begin < text.size() && begin < static_cast<size_t>(step.start) &&
             text[begin] == step.content.front()) {
        ++begin;
      }
      return text.substr(begin);
    }
    case Kind::kReplace:
    case Kind::kMetaspace: {
      std::string older;
      const bool any = replace_newer_characters(text, &older);
      std::vector<PatternMatch> matches;
      TextPattern::Search search(*pattern, text.size());
      SPILLWAY_RETURN_IF_ERROR(search.find_all(any ? older : text, text, &matches));
      return replaced(text, matches, step.kind == Kind::kMetaspace ? " " : step.content);
    }
    case Kind::kFuse:
      break;
  }
  return text;
}

}  // namespace spillway
