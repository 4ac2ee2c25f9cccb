#include "server/chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "kernels/base/strict_json.h"

namespace spillway {
namespace {

using nlohmann::json;
using Files = std::span<const std::pair<std::string, std::string>>;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kTemplate = "chat_template.jinja";

Result<json> parse_file(Files files, const char* name) {
  for (const auto& [known, contents] : files) {
    if (known == name) return parse_json_object(contents, name);
  }
  return json::object();
}

// The text of chat_template; empty when there is none.
Result<std::string> template_in(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) {
    return invalid_argument("chat_template is neither a text nor a list of templates");
  }
  for (const json& each : *found) {
    if (!each.is_object() || each.value("name", json()) != "default") continue;
    const auto text = each.find("template");
    if (text != each.end() && text->is_string()) return text->get<std::string>();
  }
  return invalid_argument("chat_template lists no template with the name default");
}

// A special token is a text, or an object with its text as content.
std::string token_text(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  const bool named =
      found->is_object() && found->contains("content") && (*found)["content"].is_string();
  return named ? (*found)["content"].get<std::string>() : "";
}

}  // namespace

ChatTemplate ChatTemplate::load(Files files) {
  ChatTemplate made;
  made.status_ = made.read(files);
  return made;
}

Status ChatTemplate::read(Files files) {
  std::string text;
  for (const auto& [name, contents] : files) {
    if (name != kTemplate) continue;
    text = contents;
    file_ = kTemplate;
  }
  SPILLWAY_ASSIGN_OR_RETURN(const json config, parse_file(files, kConfig));
  SPILLWAY_ASSIGN_OR_RETURN(const json map, parse_file(files, kMap));
  if (file_.empty()) {
    if (config.contains("chat_template") && !config["chat_template"].is_null()) file_ = kConfig;
    auto found = template_in(config);
    if (!found.ok()) return found.status().at(kConfig);
    text = std::move(found).value();
  }
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    std::string token = token_text(config, name);
    if (token.empty()) token = token_text(map, name);
    if (!token.empty()) token_texts_.emplace_back(name, std::move(token));
  }
  source_ = is_own() ? std::move(text) : std::string(kPlainChatTemplate);
  auto parsed = JinjaTemplate::parse(source_);
  if (!parsed.ok()) return parsed.status().at("the chat template in " + file_);
  template_ = std::move(parsed).value();
  return {};
}

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt,
                                         const JinjaLimits& limits) const {
  SPILLWAY_RETURN_IF_ERROR(status_);
  nlohmann::ordered_json variables = {{"messages", nlohmann::ordered_json::array()},
                                      {"tools", nullptr},
                                      {"documents", nullptr},
                                      {"add_generation_prompt", add_generation_prompt}};
  for (const ChatMessage& message : messages) {
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  for (const auto& [name, text] : token_texts_) variables[name] = text;
  auto text = template_->render(variables, limits);
  if (!text.ok()) return text.status().at("the chat template");
  return text;
}

}  // namespace spillway
