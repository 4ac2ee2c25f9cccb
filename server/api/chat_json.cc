#include "server/api/chat_json.h"

#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json stop_reason(const ChoiceText& choice) {
  if (choice.stop_string) return *choice.stop_string;
  if (choice.stop_token) return *choice.stop_token;
  return {};
}

Json choice_json(const ChoiceText& choice, const CompletionCall& call) {
  Json json = {{"index", choice.index},
               {"message", {{"role", "assistant"}, {"content", choice.text}}},
               {"logprobs", nullptr},
               {"finish_reason", choice.hit_length ? "length" : "stop"},
               {"stop_reason", stop_reason(choice)}};
  if (call.return_token_ids) {
    json["token_ids"] = choice.tokens;
    json["prompt_token_ids"] = call.requests[static_cast<size_t>(choice.index)].prompt;
  }
  return json;
}

}  // namespace

std::string chat_body(const CompletionHead& head, const CompletionCall& call,
                      const ApiContext& context, const CompletionResult& result) {
  Json json = {{"id", head.id},
               {"object", "chat.completion"},
               {"created", head.created},
               {"model", call.model},
               {"system_fingerprint", context.fingerprint},
               {"choices", Json::array()}};
  for (const ChoiceText& choice : result.choices)
    json["choices"].push_back(choice_json(choice, call));
  std::string text = dump(json);
  text.back() = ',';
  return text + "\"usage\":" + completion_usage(result.usage) + "}";
}

std::string answer_body(const CompletionHead& head, const CompletionCall& call,
                        const ApiContext& context, const CompletionResult& result) {
  return call.chat ? chat_body(head, call, context, result)
                   : completion_body(head, call, context, result);
}

}  // namespace spillway
