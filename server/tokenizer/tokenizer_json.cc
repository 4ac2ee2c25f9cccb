#include "server/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/json_reader.h"

namespace spillway {
namespace {

using nlohmann::json;

// The member, or JSON null when it is absent (or `object` is no object).
const json& member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

bool is_type(const json& object, std::string_view type) {
  const json& value = member(object, "type");
  return value.is_string() && value.get_ref<const std::string&>() == type;
}

// Whether a switch is off: false, null or absent.
bool is_off(const json& value) {
  return value.is_null() || value == false;
}

std::string shown(const json& value) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

Status check_pretokenizer(const json& step) {
  const json& use_regex = member(step, "use_regex");
  if (is_type(step, "ByteLevel") && is_off(member(step, "add_prefix_space")) &&
      (use_regex.is_null() || use_regex == true)) {
    return {};
  }
  return invalid_argument("pre_tokenizer " + shown(step) +
                          " is not supported, only ByteLevel with use_regex and without "
                          "add_prefix_space is; token-id prompts work without a tokenizer");
}

Status check_model(const json& model) {
  const json& type = member(model, "type");  // Absent in the oldest files.
  if (!model.is_object() || (!type.is_null() && type != "BPE")) {
    return invalid_argument("model.type is " + shown(type) + ", only BPE is supported");
  }
  const json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return invalid_argument("model.dropout is " + shown(dropout) + ", it must be null");
  }
  for (const char* name : {"byte_fallback", "ignore_merges"}) {
    if (is_off(member(model, name))) continue;
    return invalid_argument(std::string("model.") + name + " is not supported");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, name);
    if (affix.is_null() || affix == "") continue;
    return invalid_argument(std::string("model.") + name + " is " + shown(affix) +
                            ", a byte-level model has none");
  }
  return {};
}

// A merge is "left right", or ["left", "right"] in newer files.
Status read_merges(const json& merges, VocabularyParser* vocabulary) {
  if (!merges.is_array()) return invalid_argument("model.merges is not a list");
  for (const json& merge : merges) {
    if (merge.is_string()) {
      SPILLWAY_RETURN_IF_ERROR(
          vocabulary->add_merge_line(merge.get_ref<const std::string&>()).at("model.merges"));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      SPILLWAY_RETURN_IF_ERROR(vocabulary
                                   ->add_merge(merge[0].get_ref<const std::string&>(),
                                               merge[1].get_ref<const std::string&>())
                                   .at("model.merges"));
    } else {
      return invalid_argument("model.merges: " + shown(merge) + " is not a pair of pieces");
    }
  }
  return {};
}

Status read_added_tokens(const json& entries, VocabularyParser* vocabulary,
                         std::vector<AddedToken>* added) {
  if (entries.is_null()) return {};
  if (!entries.is_array() || entries.size() > kAddedTokensMax) {
    return invalid_argument("added_tokens is not a list of at most " +
                            std::to_string(kAddedTokensMax) + " tokens");
  }
  for (const json& entry : entries) {
    auto token = read_added_token(entry);
    if (!token.ok()) return token.status().at("added_tokens");
    const std::optional<int64_t> id = whole_number(member(entry, "id"));
    if (!id) return invalid_argument("added_tokens: " + shown(entry) + " has no integer id");
    SPILLWAY_RETURN_IF_ERROR(vocabulary->add_piece(token->text, *id).at("added_tokens"));
    token->id = static_cast<int32_t>(*id);  // add_piece() has checked the range.
    added->push_back(std::move(token).value());
  }
  return {};
}

// Reads TemplateProcessing with [A] or [special token, A]: whether a token is put in front, and
// which.
Status read_template(const json& step, const VocabularyParser& vocabulary,
                     TokenizerDescription* description) {
  const json& single = member(step, "single");
  const bool is_list = single.is_array() && !single.empty();
  if (is_list && single.size() == 1 && member(single[0], "Sequence").is_object()) {
    description->add_bos = false;
    return {};
  }
  const json& token = is_list ? member(member(single[0], "SpecialToken"), "id") : json();
  if (!is_list || single.size() != 2 || !token.is_string() ||
      !member(single[1], "Sequence").is_object()) {
    return invalid_argument("post_processor template " + shown(single) +
                            " is not supported, only one token in front of the text is");
  }
  description->bos = vocabulary.id_of(token.get_ref<const std::string&>());
  description->add_bos = true;
  if (description->bos >= 0) return {};
  return invalid_argument("post_processor names the unknown token " + shown(token));
}

Status read_post_processor(const json& step, const VocabularyParser& vocabulary,
                           TokenizerDescription* description) {
  if (step.is_null() || is_type(step, "ByteLevel")) return {};
  if (is_type(step, "TemplateProcessing")) return read_template(step, vocabulary, description);
  const json& steps = member(step, "processors");
  if (!is_type(step, "Sequence") || !steps.is_array()) {
    return invalid_argument("post_processor " + shown(step) + " is not supported");
  }
  for (const json& inner : steps) {
    if (is_type(inner, "ByteLevel")) continue;
    if (!is_type(inner, "TemplateProcessing")) {
      return invalid_argument("post_processor " + shown(inner) + " is not supported");
    }
    SPILLWAY_RETURN_IF_ERROR(read_template(inner, vocabulary, description));
  }
  return {};
}

}  // namespace

Status read_vocabulary(const json& entries, VocabularyParser* vocabulary) {
  if (!entries.is_object()) return invalid_argument("the vocabulary is not a JSON object");
  for (const auto& [piece, value] : entries.items()) {
    const std::optional<int64_t> id = whole_number(value);
    if (!id) return invalid_argument("the id of piece " + shown(piece) + " is " + shown(value));
    SPILLWAY_RETURN_IF_ERROR(vocabulary->add_piece(piece, *id));
  }
  return {};
}

Result<AddedToken> read_added_token(const json& entry) {
  const json& content = member(entry, "content");
  if (!content.is_string() || content == "") {
    return invalid_argument(shown(entry) + " has no content");
  }
  AddedToken token;
  token.text = content.get<std::string>();
  for (const auto& [name, flag] : {std::pair<const char*, bool*>{"special", &token.special},
                                   {"lstrip", &token.strip_left},
                                   {"rstrip", &token.strip_right}}) {
    const json& value = member(entry, name);
    if (!value.is_null() && !value.is_boolean()) {
      return invalid_argument(shown(entry) + ": " + name + " is not true or false");
    }
    *flag = value == true;
  }
  if (!is_off(member(entry, "single_word"))) {
    return invalid_argument(shown(entry) + ": single_word is not supported");
  }
  return token;
}

Status read_tokenizer_json(const json& file, VocabularyParser* vocabulary,
                           TokenizerDescription* description) {
  if (!member(file, "normalizer").is_null()) {
    return invalid_argument("normalizer " + shown(member(file, "normalizer")) +
                            " is not supported, it must be null");
  }
  SPILLWAY_RETURN_IF_ERROR(check_pretokenizer(member(file, "pre_tokenizer")));
  if (!is_type(member(file, "decoder"), "ByteLevel")) {
    return invalid_argument("decoder " + shown(member(file, "decoder")) +
                            " is not supported, only ByteLevel is");
  }
  const json& model = member(file, "model");
  SPILLWAY_RETURN_IF_ERROR(check_model(model));
  SPILLWAY_RETURN_IF_ERROR(read_vocabulary(member(model, "vocab"), vocabulary).at("model.vocab"));
  SPILLWAY_RETURN_IF_ERROR(
      read_added_tokens(member(file, "added_tokens"), vocabulary, &description->added));
  SPILLWAY_RETURN_IF_ERROR(read_merges(member(model, "merges"), vocabulary));
  return read_post_processor(member(file, "post_processor"), *vocabulary, description);
}

}  // namespace spillway
