#include "server/api/chat_parse.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/quote.h"
#include "server/api/completion_fields.h"
#include "server/api/completion_prompt.h"
#include "server/api/json_input.h"
#include "server/chat/chat_template.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {
namespace {

using nlohmann::json;
using Messages = std::vector<ChatMessage>;

ApiResult<std::string> read_part(const json& part, const std::string& param) {
  if (!part.is_object()) return invalid_type(param, "an object");
  const auto type = part.find("type");
  if (type == part.end() || *type != "text") {
    return unsupported_parameter(param + ".type", "only parts of type text are");
  }
  const auto text = part.find("text");
  if (text == part.end() || !text->is_string()) return invalid_type(param + ".text", "a string");
  return text->get<std::string>();
}

ApiResult<std::string> read_content(const json& message, const std::string& param) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return missing_parameter(param);
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return invalid_type(param, "a string or a list of text parts");
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    auto part = read_part((*content)[i], param + "[" + std::to_string(i) + "]");
    if (auto* error = std::get_if<ApiError>(&part)) return std::move(*error);
    if (i > 0) joined += '\n';
    joined += std::get<std::string>(part);
  }
  return joined;
}

ApiResult<ChatMessage> read_message(const json& message, const std::string& param) {
  if (!message.is_object()) return invalid_type(param, "an object");
  for (const char* name : {"tool_calls", "tool_call_id", "function_call", "audio", "refusal"}) {
    const auto found = message.find(name);
    if (found != message.end() && !asks_for_nothing(name, *found)) {
      return unsupported_parameter(param + "." + name, "this server does not implement it");
    }
  }
  const auto role = message.find("role");
  if (role == message.end() || role->is_null()) return missing_parameter(param + ".role");
  if (!role->is_string()) return invalid_type(param + ".role", "a string");
  ChatMessage read;
  read.role = *role == "developer" ? "system" : role->get<std::string>();
  if (read.role != "system" && read.role != "user" && read.role != "assistant") {
    return unsupported_parameter(param + ".role", "only system, developer, user and assistant are");
  }
  const auto name = message.find("name");  // It has no effect.
  if (name != message.end() && !name->is_null() && !name->is_string()) {
    return invalid_type(param + ".name", "a string");
  }
  auto content = read_content(message, param + ".content");
  if (auto* error = std::get_if<ApiError>(&content)) return std::move(*error);
  read.content = std::get<std::string>(std::move(content));
  return read;
}

ApiResult<Messages> read_messages(const json* list) {
  if (list == nullptr) return missing_parameter("messages");
  if (!list->is_array()) return invalid_type("messages", "a list of messages");
  if (list->empty()) return invalid_value("messages", "must not be empty");
  if (list->size() > kChatMessagesMax) {
    return invalid_value(
        "messages", "must not list more than " + std::to_string(kChatMessagesMax) + " messages");
  }
  Messages messages;
  for (size_t i = 0; i < list->size(); ++i) {
    auto message = read_message((*list)[i], "messages[" + std::to_string(i) + "]");
    if (auto* error = std::get_if<ApiError>(&message)) return std::move(*error);
    messages.push_back(std::get<ChatMessage>(std::move(message)));
  }
  return messages;
}

std::optional<ApiError> refuse_others(const json& object, std::initializer_list<const char*> known,
                                      const std::string& param) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return unknown_parameter(is_safe_name(name) ? param + "." + name : "");
  }
  return std::nullopt;
}

// The first name in messages, which were read, that means nothing here. Clients send the messages
// of answers back, so their fields are known, too.
std::optional<ApiError> refuse_unknown_names(const json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string param = "messages[" + std::to_string(i) + "]";
    auto error = refuse_others(messages[i],
                               {"role", "content", "name", "tool_calls", "tool_call_id",
                                "function_call", "audio", "refusal", "annotations"},
                               param);
    if (error) return error;
    const json& parts = messages[i]["content"];
    for (size_t k = 0; parts.is_array() && k < parts.size(); ++k) {
      error =
          refuse_others(parts[k], {"type", "text"}, param + ".content[" + std::to_string(k) + "]");
      if (error) return error;
    }
  }
  return std::nullopt;
}

// Bounds that a template only reaches by running away, however long the messages are: it may write
// them twice over, and copy or read each a few times. `text_bytes_max`: of a text that is accepted.
JinjaLimits limits_for(const Messages& messages, int64_t text_bytes_max) {
  size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.role.size() + message.content.size();
  JinjaLimits limits;
  limits.steps += bytes;
  limits.bytes += 16 * bytes;
  limits.output_bytes = static_cast<size_t>(text_bytes_max) + 2 * bytes;
  return limits;
}

// The error for a prompt of so many bytes; empty: it is not too long.
std::optional<ApiError> check_length(size_t bytes, const ApiContext& context, ChatPromptUse use) {
  const std::string length = "make a prompt of " + std::to_string(bytes) + " bytes";
  if (use == ChatPromptUse::kAnswer && static_cast<int64_t>(bytes) > prompt_bytes_max(context)) {
    return prompt_too_long("messages", length, context);
  }
  const int64_t most = context.limits.tokenize_bytes_max;
  if (use == ChatPromptUse::kTokens && static_cast<int64_t>(bytes) > most) {
    return invalid_value("messages", length + "; at most " + std::to_string(most) + " are read");
  }
  return std::nullopt;
}

ApiResult<std::vector<int32_t>> encode(const Messages& messages, bool add_generation_prompt,
                                       const ApiContext& context, ChatPromptUse use) {
  if (context.tokenizer == nullptr || context.chat == nullptr) {
    return invalid_value("messages", "need a tokenizer, which this model has not");
  }
  const int64_t most =
      use == ChatPromptUse::kAnswer ? prompt_bytes_max(context) : context.limits.tokenize_bytes_max;
  const Result<std::string> text =
      context.chat->render(messages, add_generation_prompt, limits_for(messages, most));
  if (!text.ok()) {
    return invalid_value("messages",
                         "cannot be made a prompt: " + std::string(text.status().message()));
  }
  if (auto error = check_length(text->size(), context, use)) return *std::move(error);
  EncodeOptions options;
  options.parse_special = true;
  options.add_bos = !context.chat->is_own() && context.tokenizer->adds_bos();
  Result<std::vector<int32_t>> encoded = context.tokenizer->encode(text.value(), options);
  if (!encoded.ok()) {
    return invalid_value("messages",
                         "cannot be tokenized: " + std::string(encoded.status().message()));
  }
  std::vector<int32_t> ids = std::move(encoded).value();
  if (ids.empty()) return invalid_value("messages", "give an empty prompt");
  // A tokenizer with more entries than the model has rows must not reach the engine.
  for (const int32_t id : ids) {
    if (id >= 0 && id < context.shape->vocabulary) continue;
    return invalid_value("messages", "have a token that this model has no embedding for");
  }
  return ids;
}

// Takes the field from the body; null when it is absent.
json taken(json* body, const char* name) {
  const auto found = body->find(name);
  if (found == body->end()) return nullptr;
  json value = std::move(*found);
  body->erase(found);
  return value;
}

// Fields of chats that are refused unless they ask for nothing.
std::optional<ApiError> refuse_unsupported(json* body) {
  const json choice = taken(body, "tool_choice");
  if (choice == "none") taken(body, "tools");  // They are not to be called.
  for (const char* name :
       {"prompt", "echo", "tools", "functions", "function_call", "audio", "prediction",
        "web_search_options", "continue_final_message", "documents", "add_special_tokens",
        "truncate_prompt_tokens", "truncation_side", "mm_processor_kwargs"}) {
    const json value = taken(body, name);
    if (asks_for_nothing(name, value)) continue;
    return unsupported_parameter(name, "this server does not implement it for chats");
  }
  if (!asks_for_nothing("tool_choice", choice) && choice != "none" && choice != "auto") {
    return unsupported_parameter("tool_choice", "this server does not implement tools");
  }
  const json modalities = taken(body, "modalities");
  if (!asks_for_nothing("modalities", modalities) && modalities != json{"text"}) {
    return unsupported_parameter("modalities", "only text is");
  }
  return std::nullopt;
}

// `logprobs` says whether, and `top_logprobs` how many others are named with each token: together
// what `logprobs` alone says for completions.
std::optional<ApiError> join_logprobs(const ApiLimits& limits, json* body) {
  const json named = {{"logprobs", taken(body, "logprobs")},
                      {"top_logprobs", taken(body, "top_logprobs")}};
  FieldReader fields(named);
  const bool wanted = fields.flag("logprobs", false);
  const int64_t others = fields.integer("top_logprobs", 0, limits.logprobs_max).value_or(0);
  if (fields.failed()) return fields.error();
  if (others > 0 && !wanted) {
    return invalid_value("top_logprobs", "can only be set when logprobs is true");
  }
  if (wanted) (*body)["logprobs"] = others;
  return std::nullopt;
}

}  // namespace

std::vector<int32_t> read_chat_prompt(FieldReader& fields, const ApiContext& context,
                                      ChatPromptUse use) {
  const json* list = fields.find("messages");
  const bool add_generation_prompt = fields.flag("add_generation_prompt", true);
  if (fields.failed()) return {};
  auto messages = read_messages(list);
  if (auto* error = std::get_if<ApiError>(&messages)) {
    fields.fail(std::move(*error));
    return {};
  }
  if (context.limits.strict_params) {
    if (auto error = refuse_unknown_names(*list)) {
      fields.fail(*std::move(error));
      return {};
    }
  }
  auto ids = encode(std::get<Messages>(messages), add_generation_prompt, context, use);
  if (auto* error = std::get_if<ApiError>(&ids)) {
    fields.fail(std::move(*error));
    return {};
  }
  return std::get<std::vector<int32_t>>(std::move(ids));
}

ApiResult<CompletionCall> parse_chat(std::string_view json_body, const ApiContext& context) {
  auto parsed = parse_body(json_body, context.limits.json_values_max);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  json& body = std::get<json>(parsed);
  if (auto error = refuse_unsupported(&body)) return std::move(*error);
  if (auto error = join_logprobs(context.limits, &body)) return std::move(*error);
  CompletionFields own;
  own.source = "messages";
  own.tokens_default = kChatTokensDefault;
  own.prompts = [&](FieldReader& fields, int64_t) -> std::vector<std::vector<int32_t>> {
    std::vector<int32_t> ids = read_chat_prompt(fields, context, ChatPromptUse::kAnswer);
    if (fields.failed()) return {};
    return {std::move(ids)};
  };
  auto call = parse_completion_fields(body, context, own);
  if (auto* made = std::get_if<CompletionCall>(&call)) {
    made->chat = true;
    if (!context.chat->is_own() &&
        static_cast<int64_t>(made->stop.size()) < context.limits.stops_max) {
      made->stop.emplace_back(kPlainChatStop);
    }
  }
  return call;
}

}  // namespace spillway
