#include "offload/convert/gguf_tokenizer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "kernels/base/quote.h"
#include "offload/convert/gguf_merges.h"
#include "offload/convert/gguf_pretokenizer.h"

namespace spillway {

using nlohmann::json;

namespace {

constexpr size_t kTokensMax = size_t{1} << 20;
constexpr size_t kTokenBytesMax = 4096;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space.

// tokenizer.ggml.token_type
constexpr int64_t kUnknown = 2;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

bool is_continuation(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
}

// Whether the text is well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return false;
    for (size_t k = 1; k < length; ++k) {
      if (!is_continuation(text, i + k)) return false;
    }
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += length;
  }
  return true;
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json replace(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", json::object({{"String", from}})}, {"content", to}};
}

class TokenizerWriter {
 public:
  TokenizerWriter(const GgufMetadata& metadata, const std::string& where)
      : reader_(metadata, where) {}

  Result<std::vector<std::pair<std::string, std::string>>> write() {
    std::vector<std::pair<std::string, std::string>> files;
    if (!reader_.has("tokenizer.ggml.model")) return files;
    kind_ = reader_.string("tokenizer.ggml.model");
    // llama.cpp's names for a file without a tokenizer: prompts are token ids.
    if (kind_ == "none" || kind_ == "no_vocab") return files;
    read_tokens();
    read_special();
    SPILLWAY_RETURN_IF_ERROR(reader_.status());
    tokenizer_ = {{"version", "1.0"},      {"truncation", nullptr},    {"padding", nullptr},
                  {"normalizer", nullptr}, {"pre_tokenizer", nullptr}, {"post_processor", nullptr},
                  {"decoder", nullptr}};
    if (kind_ == "gpt2") {
      write_byte_level();
    } else if (kind_ == "llama") {
      write_sentence_pieces();
    } else {
      tokenizer_["model"] = json::object({{"type", "tokenizer.ggml.model " + shown(kind_)}});
    }
    write_added_tokens();
    write_template();
    const json config = config_json();
    SPILLWAY_RETURN_IF_ERROR(reader_.status());
    files.emplace_back("tokenizer.json", tokenizer_.dump());
    files.emplace_back("tokenizer_config.json", config.dump());
    return files;
  }

 private:
  // An untrusted name for a place where only a message quotes it.
  static std::string shown(std::string_view name) {
    return is_safe_name(name) ? std::string(name) : in_quotes(name);
  }

  void read_tokens() {
    constexpr std::string_view kKey = "tokenizer.ggml.tokens";
    if (!reader_.has(kKey)) reader_.fail(kKey, "is missing");
    const auto* tokens = reader_.find_strings(kKey);
    if (tokens == nullptr) return;
    tokens_ = tokens;
    if (tokens->empty() || tokens->size() > kTokensMax) {
      return reader_.fail(
          kKey, "has " + std::to_string(tokens->size()) + " tokens, must have 1 to 1,048,576");
    }
    for (size_t i = 0; i < tokens->size(); ++i) {
      const std::string& token = (*tokens)[i];
      const std::string name = "token " + std::to_string(i) + " ";
      if (token.size() > kTokenBytesMax) {
        return reader_.fail(
            kKey, name + "has " + std::to_string(token.size()) + " bytes, the limit is 4096");
      }
      if (!is_utf8(token)) {
        return reader_.fail(kKey, name + in_quotes(token) + " is not valid UTF-8");
      }
      const auto [found, fresh] = ids_.emplace(token, i);
      if (!fresh) {
        return reader_.fail(kKey, name + in_quotes(token) + " is token " +
                                      std::to_string(found->second) + " again");
      }
    }
    types_ = reader_.find_integers("tokenizer.ggml.token_type");
    if (types_ != nullptr && types_->size() != tokens->size()) {
      reader_.fail("tokenizer.ggml.token_type", "has " + std::to_string(types_->size()) +
                                                    " elements for " +
                                                    std::to_string(tokens->size()) + " tokens");
    }
  }

  int64_t type_of(size_t id) const { return types_ == nullptr ? 1 : (*types_)[id]; }

  // The id of a special token; -1: there is none, or no text for it.
  int64_t special(std::string_view name) {
    const auto id = reader_.find_integer(name, INT64_MIN, INT64_MAX);
    if (!id || *id < 0 || tokens_ == nullptr) return -1;
    return *id < static_cast<int64_t>(tokens_->size()) ? *id : -1;
  }

  void read_special() {
    bos_ = special("tokenizer.ggml.bos_token_id");
    eos_ = special("tokenizer.ggml.eos_token_id");
    pad_ = special("tokenizer.ggml.padding_token_id");
    unknown_ = special("tokenizer.ggml.unknown_token_id");
    add_bos_ = reader_.find_boolean("tokenizer.ggml.add_bos_token");
    add_eos_ = reader_.find_boolean("tokenizer.ggml.add_eos_token").value_or(false);
  }

  json vocabulary() const {
    json entries = json::object();
    for (size_t i = 0; i < tokens_->size(); ++i) entries[(*tokens_)[i]] = i;
    return entries;
  }

  void write_byte_level() {
    const std::string name = reader_.find_string("tokenizer.ggml.pre").value_or("");
    const GgufPretokenizer* pre = gguf_pretokenizer(name);
    const auto* merges = reader_.find_strings("tokenizer.ggml.merges");
    if (merges == nullptr) return reader_.fail("tokenizer.ggml.merges", "is missing");
    for (size_t i = 0; i < merges->size(); ++i) {
      if (is_utf8((*merges)[i])) continue;
      return reader_.fail("tokenizer.ggml.merges",
                          "has no valid UTF-8 in merge " + std::to_string(i));
    }
    tokenizer_["model"] = {{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", nullptr},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", pre != nullptr && pre->ignore_merges},
                           {"vocab", vocabulary()},
                           {"merges", *merges}};
    tokenizer_["decoder"] = byte_level(true);
    if (pre == nullptr) {
      // No tokenizer.json has this type: its reader names it when text is asked for.
      tokenizer_["pre_tokenizer"] = json::object({{"type", "tokenizer.ggml.pre " + shown(name)}});
      return;
    }
    if (pre->nfc) tokenizer_["normalizer"] = json::object({{"type", "NFC"}});
    if (!add_bos_ && pre->add_bos) add_bos_ = true;
    json first;
    if (pre->digits) first = {{"type", "Digits"}, {"individual_digits", true}};
    if (!pre->pattern.empty()) {
      first = {{"type", "Split"},
               {"pattern", json::object({{"Regex", pre->pattern}})},
               {"behavior", "Isolated"},
               {"invert", false}};
    }
    const json bytes = byte_level(pre->pattern.empty());
    tokenizer_["pre_tokenizer"] =
        first.is_null()
            ? bytes
            : json{{"type", "Sequence"}, {"pretokenizers", json::array({first, bytes})}};
  }

  void write_sentence_pieces() {
    const auto* scores = reader_.find_numbers("tokenizer.ggml.scores");
    if (scores == nullptr) return reader_.fail("tokenizer.ggml.scores", "is missing");
    if (scores->size() != tokens_->size()) {
      return reader_.fail("tokenizer.ggml.scores", "has " + std::to_string(scores->size()) +
                                                       " elements for " +
                                                       std::to_string(tokens_->size()) + " tokens");
    }
    for (size_t i = 0; i < scores->size(); ++i) {
      if (!std::isnan((*scores)[i])) continue;
      return reader_.fail("tokenizer.ggml.scores",
                          "is not a number for token " + std::to_string(i));
    }
    json merges = json::array();
    for (const auto& [left, right] : merges_of_scores(*tokens_, *scores)) {
      merges.push_back(json::array({left, right}));
    }
    tokenizer_["model"] = {{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", unknown_ < 0 ? json() : json(text_of(unknown_))},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", true},
                           {"byte_fallback", true},
                           {"ignore_merges", false},
                           {"vocab", vocabulary()},
                           {"merges", std::move(merges)}};
    const bool prefix = reader_.find_boolean("tokenizer.ggml.add_space_prefix").value_or(true);
    json normalizers = json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    normalizers.push_back(replace(" ", kSpaceMark));
    tokenizer_["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
    json decoders = json::array({replace(kSpaceMark, " "), json::object({{"type", "ByteFallback"}}),
                                 json::object({{"type", "Fuse"}})});
    if (prefix) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    tokenizer_["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    if (!add_bos_) add_bos_ = true;
  }

  const std::string& text_of(int64_t id) const { return (*tokens_)[static_cast<size_t>(id)]; }

  // Phi-3's special tokens take the white space behind them with them, all but three; the file does
  // not say so, llama.cpp and transformers both know it of the model.
  bool strips_right(std::string_view token) const {
    return architecture_ == "phi3" && kind_ == "llama" && token != "<unk>" && token != "<s>" &&
           token != "<|endoftext|>";
  }

  void write_added_tokens() {
    if (tokens_ == nullptr) return;
    json added = json::array();
    for (size_t i = 0; i < tokens_->size(); ++i) {
      const int64_t type = type_of(i);
      const auto id = static_cast<int64_t>(i);
      // Without types only the named tokens are known to be special.
      const bool named = types_ == nullptr && (id == bos_ || id == eos_ || id == unknown_);
      if (type != kUnknown && type != kControl && type != kUserDefined && !named) continue;
      if ((*tokens_)[i].empty()) continue;
      added.push_back({{"id", id},
                       {"content", (*tokens_)[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", strips_right((*tokens_)[i])},
                       {"normalized", false},
                       {"special", type != kUserDefined}});
    }
    tokenizer_["added_tokens"] = std::move(added);
  }

  void write_template() {
    const bool bos = add_bos_.value_or(false) && bos_ >= 0;
    const bool eos = add_eos_ && eos_ >= 0;
    if (!bos && !eos) return;
    json specials = json::object();
    const auto piece = [&](int64_t id, int type_id) {
      const std::string& text = text_of(id);
      specials[text] = {{"id", text}, {"ids", json::array({id})}, {"tokens", json::array({text})}};
      return json::object({{"SpecialToken", {{"id", text}, {"type_id", type_id}}}});
    };
    const auto add = [&](json& target, const char* sequence, int type_id) {
      if (bos) target.push_back(piece(bos_, type_id));
      target.push_back(json::object({{"Sequence", {{"id", sequence}, {"type_id", type_id}}}}));
      if (eos) target.push_back(piece(eos_, type_id));
    };
    json single = json::array();
    json pair = json::array();
    add(single, "A", 0);
    add(pair, "A", 0);
    add(pair, "B", 1);
    tokenizer_["post_processor"] = {{"type", "TemplateProcessing"},
                                    {"single", single},
                                    {"pair", pair},
                                    {"special_tokens", specials}};
  }

  json config_json() {
    json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false},
                   {"add_bos_token", add_bos_.value_or(false) && bos_ >= 0},
                   {"add_eos_token", add_eos_}};
    const std::pair<const char*, int64_t> names[] = {
        {"bos_token", bos_}, {"eos_token", eos_}, {"pad_token", pad_}, {"unk_token", unknown_}};
    for (const auto& [name, id] : names) {
      if (id >= 0) config[name] = text_of(id);
    }
    if (const auto text = reader_.find_string("tokenizer.chat_template")) {
      if (!is_utf8(*text)) reader_.fail("tokenizer.chat_template", "is not valid UTF-8");
      config["chat_template"] = *text;
    }
    return config;
  }

  GgufKeyReader reader_;
  const std::string architecture_ = reader_.find_string("general.architecture").value_or("");
  std::string kind_;
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<int64_t>* types_ = nullptr;
  std::unordered_map<std::string_view, size_t> ids_;
  int64_t bos_ = -1;
  int64_t eos_ = -1;
  int64_t pad_ = -1;
  int64_t unknown_ = -1;
  std::optional<bool> add_bos_;
  bool add_eos_ = false;
  json tokenizer_;
};

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> gguf_tokenizer_files(
    const GgufMetadata& metadata, const std::string& where) {
  return TokenizerWriter(metadata, where).write();
}

}  // namespace spillway
