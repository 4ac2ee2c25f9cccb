#include "server/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kernels/base/strict_json.h"
#include "server/tokenizer/tokenizer_json.h"
#include "server/tokenizer/vocabulary_parser.h"

namespace spillway {
namespace {

using nlohmann::json;

// Null when no file has that name.
const std::string* find_file(std::span<const NamedFile> files, std::string_view name) {
  for (const NamedFile& file : files) {
    if (file.first == name) return &file.second;
  }
  return nullptr;
}

Result<json> parse_file(std::span<const NamedFile> files, const char* name) {
  const std::string* text = find_file(files, name);
  if (text == nullptr) return json::object();
  return parse_json_object(*text, name);
}

Status read_merges_text(std::string_view text, VocabularyParser* vocabulary) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.substr(0, 8) == "#version")) continue;
    SPILLWAY_RETURN_IF_ERROR(
        vocabulary->add_merge_line(line).at("merges.txt: line " + std::to_string(number)));
  }
  return {};
}

// Reads added_tokens_decoder of tokenizer_config.json, {"50264": {"content": ...}, ...}: the only
// source of added tokens beside vocab.json.
Status read_added_decoder(const json& config, VocabularyParser* vocabulary,
                          TokenizerDescription* description) {
  const auto found = config.find("added_tokens_decoder");
  if (found == config.end() || found->is_null()) return {};
  if (!found->is_object() || found->size() > kAddedTokensMax) {
    return invalid_argument("not an object of at most " + std::to_string(kAddedTokensMax) +
                            " tokens");
  }
  for (const auto& [key, entry] : found->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return invalid_argument("a key is not an id");
    }
    SPILLWAY_ASSIGN_OR_RETURN(AddedToken token, read_added_token(entry));
    SPILLWAY_RETURN_IF_ERROR(add_token(std::move(token), id, vocabulary, description));
  }
  return {};
}

// The text of a special token in one of the configuration files, or empty.
Result<std::string> special_token_text(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return invalid_argument(std::string(name) + " is neither a text nor an object with content");
}

void add_special(int32_t id, const std::string& text, std::vector<AddedToken>* added) {
  const auto same = [id](const AddedToken& token) { return token.id == id; };
  const auto found = std::find_if(added->begin(), added->end(), same);
  if (found != added->end()) {
    found->special = true;
  } else {
    added->push_back({id, text});
  }
}

// Reads the special tokens by name; tokenizer_config.json takes precedence over
// special_tokens_map.json.
Status read_special_tokens(const json& config, const json& map, const VocabularyParser& vocabulary,
                           TokenizerDescription* description) {
  const std::pair<const char*, int32_t*> names[] = {
      {"bos_token", &description->bos}, {"eos_token", &description->eos},
      {"pad_token", &description->pad}, {"unk_token", nullptr},
      {"sep_token", nullptr},           {"cls_token", nullptr},
      {"mask_token", nullptr}};
  for (const auto& [name, target] : names) {
    auto text = special_token_text(config, name);
    if (!text.ok()) return text.status().at("tokenizer_config.json");
    if (text->empty()) text = special_token_text(map, name);
    if (!text.ok()) return text.status().at("special_tokens_map.json");
    if (text->empty()) continue;
    const int32_t id = vocabulary.id_of(text.value());
    if (id >= 0) add_special(id, text.value(), &description->added);
    if (target == nullptr) continue;
    if (id < 0) {
      return invalid_argument("tokenizer_config.json or special_tokens_map.json: " +
                              std::string(name) + " is not in the vocabulary");
    }
    *target = id;
  }
  const auto add_bos = config.find("add_bos_token");
  if (add_bos != config.end() && add_bos->is_boolean()) description->add_bos = add_bos->get<bool>();
  return {};
}

// Whether transformers' class of that name builds the tokens around a text anew from add_bos_token
// and add_eos_token, whatever tokenizer.json says, and whether bos is then there by default.
std::optional<bool> bos_of_class(const json& config) {
  const auto found = config.find("tokenizer_class");
  if (found == config.end() || !found->is_string()) return std::nullopt;
  std::string name = found->get<std::string>();
  if (name.size() > 4 && name.compare(name.size() - 4, 4, "Fast") == 0)
    name.resize(name.size() - 4);
  if (name == "GPTNeoXTokenizer") return false;
  for (const char* known :
       {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}) {
    if (name == known) return true;
  }
  return std::nullopt;
}

bool flag_of(const json& config, const char* name, bool otherwise) {
  const auto found = config.find(name);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

// What transformers changes in a tokenizer that it has read from tokenizer.json.
void follow_transformers(const json& file, const json& config, TokenizerDescription* description) {
  if (config.empty()) return;
  const auto pre_tokenizer = file.find("pre_tokenizer");
  if (pre_tokenizer != file.end() && pre_tokenizer->is_object() &&
      pre_tokenizer->value("type", "") == "ByteLevel") {
    description->pre_tokenizer.front().add_prefix_space =
        flag_of(config, "add_prefix_space", false);
  }
  const std::optional<bool> bos = bos_of_class(config);
  if (!bos) return;
  TokensAround around;
  if (flag_of(config, "add_bos_token", *bos)) around.before.push_back(description->bos);
  if (flag_of(config, "add_eos_token", false)) around.behind.push_back(description->eos);
  const auto missing = [](const std::vector<int32_t>& ids) { return !ids.empty() && ids[0] < 0; };
  // transformers refuses these; the file's own are better than nothing.
  if (!missing(around.before) && !missing(around.behind)) description->around = std::move(around);
}

// GPT-2's steps, which vocab.json and merges.txt do not name.
void set_gpt2_steps(TokenizerDescription* description) {
  description->pre_tokenizer.emplace_back();
  description->decoder.emplace_back();
}

Status check_files(std::span<const NamedFile> files) {
  for (const NamedFile& file : files) {
    if (file.second.size() <= kTokenizerFileBytesMax) continue;
    return invalid_argument(file.first + ": " + std::to_string(file.second.size()) +
                            " bytes, the limit is " + std::to_string(kTokenizerFileBytesMax));
  }
  const bool split = find_file(files, "vocab.json") && find_file(files, "merges.txt");
  if (split || find_file(files, "tokenizer.json")) return {};
  return not_found(
      "neither tokenizer.json nor vocab.json and merges.txt; without a tokenizer only " +
      std::string("token-id prompts work"));
}

}  // namespace

Result<TokenizerDescription> read_tokenizer_files(std::span<const NamedFile> files) {
  SPILLWAY_RETURN_IF_ERROR(check_files(files));
  SPILLWAY_ASSIGN_OR_RETURN(const json config, parse_file(files, "tokenizer_config.json"));
  SPILLWAY_ASSIGN_OR_RETURN(const json map, parse_file(files, "special_tokens_map.json"));
  TokenizerDescription description;
  VocabularyParser vocabulary;
  json file;
  const char* vocabulary_file = "tokenizer.json";
  const bool whole = find_file(files, vocabulary_file) != nullptr;
  if (whole) {
    SPILLWAY_ASSIGN_OR_RETURN(file, parse_file(files, vocabulary_file));
    SPILLWAY_RETURN_IF_ERROR(
        read_tokenizer_json(file, &vocabulary, &description).at(vocabulary_file));
  } else {
    vocabulary_file = "vocab.json";
    SPILLWAY_ASSIGN_OR_RETURN(file, parse_file(files, vocabulary_file));
    SPILLWAY_RETURN_IF_ERROR(read_vocabulary(file, &vocabulary).at(vocabulary_file));
    SPILLWAY_RETURN_IF_ERROR(read_merges_text(*find_file(files, "merges.txt"), &vocabulary));
    SPILLWAY_RETURN_IF_ERROR(read_added_decoder(config, &vocabulary, &description)
                                 .at("tokenizer_config.json: added_tokens_decoder"));
    set_gpt2_steps(&description);
  }
  SPILLWAY_RETURN_IF_ERROR(vocabulary.check_complete().at(vocabulary_file));
  SPILLWAY_RETURN_IF_ERROR(read_special_tokens(config, map, vocabulary, &description));
  if (whole) follow_transformers(file, config, &description);
  std::sort(description.added.begin(), description.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  description.pieces = vocabulary.take_pieces();
  description.merges = vocabulary.take_merges();
  return description;
}

}  // namespace spillway
