#include "server/api/text.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "server/tokenizer/detokenizer.h"
#include "server/tokenizer/stop_matcher.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {
namespace {

// Bytes that are not whole characters, as OpenAI writes them; two such tokens never share a name.
std::string escaped_bytes(std::string_view bytes) {
  std::string text = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, bool parse_special) {
  EncodeOptions options;
  options.add_bos = add_special_tokens;
  options.parse_special = parse_special;
  return tokenizer.encode(text, options);
}

SpecialTokens special_tokens(const Tokenizer& tokenizer) {
  return {tokenizer.bos(), tokenizer.eos(), tokenizer.pad(), tokenizer.adds_bos()};
}

std::string decode_tokens(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          bool skip_special_tokens) {
  return tokenizer.decode(tokens, skip_special_tokens);
}

std::string token_name(const Tokenizer* tokenizer, int32_t token, bool as_id) {
  if (as_id || tokenizer == nullptr) return "token_id:" + std::to_string(token);
  const std::string_view bytes = tokenizer->token_bytes(token);
  if (bytes.empty()) return "token_id:" + std::to_string(token);
  // Decoding changes exactly the bytes that are not whole characters.
  std::string text = tokenizer->decode({&token, 1}, false, TextPosition::kContinuation);
  return text == bytes ? text : escaped_bytes(bytes);
}

std::vector<uint8_t> token_bytes(const Tokenizer& tokenizer, int32_t token) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  return {bytes.begin(), bytes.end()};
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

struct TextStream::Parts {
  Detokenizer detokenizer;
  std::optional<StopMatcher> matcher;
  bool searching = false;  // Stop strings are searched from here on
};

TextStream::TextStream(const Tokenizer* tokenizer, bool skip_special_tokens,
                       const std::vector<std::string>& stops, bool include_stop, bool begins_text) {
  if (tokenizer == nullptr) return;  // There is no text at all
  const auto position = begins_text ? TextPosition::kStart : TextPosition::kContinuation;
  parts_ = std::make_unique<Parts>(Parts{{tokenizer, skip_special_tokens, position}, {}});
  if (stops.empty()) return;
  auto matcher = StopMatcher::create(stops, include_stop);
  SPILLWAY_CHECK(matcher.ok());  // parse_completion keeps the same bounds.
  parts_->matcher = std::move(matcher).value();
}

TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&& other) noexcept = default;
TextStream& TextStream::operator=(TextStream&& other) noexcept = default;

TextStream::Step TextStream::push(int32_t token, bool may_stop) {
  Step step;
  if (!parts_) return step;
  step.text = parts_->detokenizer.push(token);
  step.decoded = count_characters(step.text);
  if (!parts_->matcher || !may_stop) return step;
  parts_->searching = true;
  step.text = parts_->matcher->push(step.text);
  if (parts_->matcher->match()) step.stop = parts_->matcher->match()->stop;
  return step;
}

TextStream::Step TextStream::finish() {
  Step step;
  if (!parts_) return step;
  step.text = parts_->detokenizer.finish();
  step.decoded = count_characters(step.text);
  if (!parts_->searching) return step;
  step.text = parts_->matcher->push(step.text);
  step.text += parts_->matcher->finish();
  if (parts_->matcher->match()) step.stop = parts_->matcher->match()->stop;
  return step;
}

}  // namespace spillway
