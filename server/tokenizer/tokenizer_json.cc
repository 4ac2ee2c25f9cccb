#include "server/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/json_reader.h"
#include "server/tokenizer/tokenizer_steps_json.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr size_t kTemplateTokensMax = 64;

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

bool read_switch(const json& model, const char* name, Status* status) {
  const json& value = member(model, name);
  if (!is_off(value) && value != true && status->ok()) {
    *status = invalid_argument(std::string("model.") + name + " is not true or false");
  }
  return value == true;
}

Status read_model(const json& model, BpeOptions* options) {
  const json& type = member(model, "type");  // Absent in the oldest files.
  if (!model.is_object() || (!type.is_null() && type != "BPE")) {
    return invalid_argument("model.type is " + shown(type) + ", only BPE is supported");
  }
  const json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return invalid_argument("model.dropout is " + shown(dropout) + ", it must be null");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, name);
    if (affix.is_null() || affix == "") continue;
    return invalid_argument(std::string("model.") + name + " is " + shown(affix) +
                            ", which is not supported");
  }
  Status status;
  options->byte_fallback = read_switch(model, "byte_fallback", &status);
  options->fuse_unk = read_switch(model, "fuse_unk", &status);
  options->ignore_merges = read_switch(model, "ignore_merges", &status);
  return status;
}

// Reads model.unk_token, which must be in the vocabulary unless no character is ever unknown.
Status read_unknown_token(const json& model, const VocabularyParser& vocabulary,
                          BpeOptions* options) {
  const json& name = member(model, "unk_token");
  if (name.is_null()) return {};
  if (!name.is_string()) return invalid_argument("model.unk_token is " + shown(name));
  options->unknown = vocabulary.id_of(name.get_ref<const std::string&>());
  if (options->unknown >= 0 || options->bytes || options->byte_fallback) return {};
  return invalid_argument("model.unk_token " + shown(name) + " is not in the vocabulary");
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
                         TokenizerDescription* description) {
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
    SPILLWAY_RETURN_IF_ERROR(
        add_token(std::move(token).value(), *id, vocabulary, description).at("added_tokens"));
  }
  return {};
}

// The ids of a special token in a template: what the template's own list says of it.
Status read_template_token(const json& step, const json& part, const VocabularyParser& vocabulary,
                           std::vector<int32_t>* ids) {
  const json& name = member(member(part, "SpecialToken"), "id");
  if (!name.is_string()) {
    return invalid_argument("post_processor template part " + shown(part) + " is not supported");
  }
  const auto& text = name.get_ref<const std::string&>();
  const json& listed = member(member(member(step, "special_tokens"), text.c_str()), "ids");
  if (listed.is_null()) {
    ids->push_back(vocabulary.id_of(text));
  } else if (!listed.is_array() || listed.empty() || listed.size() > kTemplateTokensMax) {
    return invalid_argument("post_processor: the ids of " + shown(name) + " are " + shown(listed));
  } else {
    for (const json& id : listed) {
      const std::optional<int64_t> number = whole_number(id);
      ids->push_back(number && *number >= 0 && *number < static_cast<int64_t>(kVocabularyMax)
                         ? static_cast<int32_t>(*number)
                         : -1);
    }
  }
  if (std::all_of(ids->begin(), ids->end(), [&](int32_t id) { return vocabulary.has(id); })) {
    return {};
  }
  return invalid_argument("post_processor names the unknown token " + shown(name));
}

// Reads TemplateProcessing: which tokens are put in front of a single text and behind it.
Status read_template(const json& step, const VocabularyParser& vocabulary,
                     TokenizerDescription* description) {
  const json& single = member(step, "single");
  if (!single.is_array() || single.size() > kTemplateTokensMax) {
    return invalid_argument("post_processor template " + shown(single) + " is not supported");
  }
  std::vector<int32_t> before;
  std::vector<int32_t> behind;
  int texts = 0;
  for (const json& part : single) {
    if (member(member(part, "Sequence"), "id") == "A") {
      ++texts;
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(
        read_template_token(step, part, vocabulary, texts == 0 ? &before : &behind));
  }
  if (texts != 1) {
    return invalid_argument("post_processor template " + shown(single) +
                            " is not supported, the text must be in it once");
  }
  // A second template goes around the first.
  TokensAround& around = *description->around;
  around.before.insert(around.before.begin(), before.begin(), before.end());
  around.behind.insert(around.behind.end(), behind.begin(), behind.end());
  return {};
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
                                   {"rstrip", &token.strip_right},
                                   {"normalized", &token.normalized},
                                   {"single_word", &token.single_word}}) {
    const json& value = member(entry, name);
    if (!value.is_null() && !value.is_boolean()) {
      return invalid_argument(shown(entry) + ": " + name + " is not true or false");
    }
    *flag = value == true;
  }
  return token;
}

Status add_token(AddedToken token, int64_t id, VocabularyParser* vocabulary,
                 TokenizerDescription* description) {
  const bool in_model = vocabulary->id_of(token.text) >= 0;
  SPILLWAY_RETURN_IF_ERROR(vocabulary->add_piece(token.text, id));
  token.id = static_cast<int32_t>(id);  // add_piece() has checked the range.
  if (!in_model) description->outside_model.push_back(token.id);
  description->added.push_back(std::move(token));
  return {};
}

Status read_tokenizer_json(const json& file, VocabularyParser* vocabulary,
                           TokenizerDescription* description) {
  auto normalizer = read_normalizer(member(file, "normalizer"));
  if (!normalizer.ok()) return normalizer.status().at("normalizer");
  description->normalizer = std::move(normalizer).value();
  auto pre_tokenizer = read_pre_tokenizer(member(file, "pre_tokenizer"));
  if (!pre_tokenizer.ok()) return pre_tokenizer.status().at("pre_tokenizer");
  description->pre_tokenizer = std::move(pre_tokenizer).value();
  auto decoder = read_decoder(member(file, "decoder"));
  if (!decoder.ok()) return decoder.status().at("decoder");
  description->decoder = std::move(decoder).value();
  const json& model = member(file, "model");
  BpeOptions& options = description->bpe;
  SPILLWAY_RETURN_IF_ERROR(read_model(model, &options));
  options.bytes = !description->pre_tokenizer.empty() &&
                  description->pre_tokenizer.back().kind == PreTokenizerStep::Kind::kByteLevel;
  SPILLWAY_RETURN_IF_ERROR(read_vocabulary(member(model, "vocab"), vocabulary).at("model.vocab"));
  SPILLWAY_RETURN_IF_ERROR(read_unknown_token(model, *vocabulary, &options));
  SPILLWAY_RETURN_IF_ERROR(read_merges(member(model, "merges"), vocabulary));
  SPILLWAY_RETURN_IF_ERROR(
      read_added_tokens(member(file, "added_tokens"), vocabulary, description));
  description->around.emplace();
  return read_post_processor(member(file, "post_processor"), *vocabulary, description);
}

}  // namespace spillway
