#include "server/api/chat_json.h"

#include <nlohmann/json.hpp>

#include "server/api/text.h"

namespace spillway {
namespace {

// A token as chats name it: {"token","logprob","bytes"}.
AnswerJson scored_token(const CompletionCall& call, const ApiContext& context, int32_t token,
                        float logprob) {
  AnswerJson json = {{"token", token_name(context.tokenizer, token, call.tokens_as_ids)},
                     {"logprob", finite_logprob(logprob)},
                     {"bytes", nullptr}};
  if (context.tokenizer == nullptr) return json;
  const std::vector<uint8_t> bytes = token_bytes(*context.tokenizer, token);
  if (!bytes.empty()) json["bytes"] = bytes;
  return json;
}

AnswerJson logprobs_json(const CompletionCall& call, const ApiContext& context,
                         const std::vector<TokenScore>& scores) {
  if (call.logprobs < 0) return {};
  AnswerJson content = AnswerJson::array();
  for (const TokenScore& score : scores) {
    AnswerJson entry = scored_token(call, context, score.token, score.logprobs.logprob);
    AnswerJson best = AnswerJson::array();
    for (const auto& [token, logprob] : score.logprobs.best) {
      best.push_back(scored_token(call, context, token, logprob));
    }
    entry["top_logprobs"] = std::move(best);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

AnswerJson choice_json(const CompletionCall& call, const ApiContext& context,
                       const ChoiceText& piece, const char* name, AnswerJson said) {
  AnswerJson json = {{"index", piece.index},
                     {name, std::move(said)},
                     {"logprobs", logprobs_json(call, context, piece.scores)},
                     {"finish_reason", finish_reason_json(piece)},
                     {"stop_reason", stop_reason_json(piece)}};
  if (call.return_token_ids) json["token_ids"] = piece.tokens;
  return json;
}

}  // namespace

AnswerJson chat_choice(const CompletionCall& call, const ApiContext& context,
                       const ChoiceText& choice) {
  return choice_json(call, context, choice, "message",
                     {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}});
}

AnswerJson chat_delta(const CompletionCall& call, const ApiContext& context,
                      const ChoiceText& piece) {
  AnswerJson delta = AnswerJson::object();
  if (piece.first) delta["role"] = "assistant";
  if (piece.first || !piece.text.empty()) delta["content"] = piece.text;
  return choice_json(call, context, piece, "delta", std::move(delta));
}

}  // namespace spillway
