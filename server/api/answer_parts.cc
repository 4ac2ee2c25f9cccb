#include "server/api/answer_parts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/api/text.h"

namespace spillway {

float finite_logprob(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0f;
}

AnswerJson prompt_logprobs_json(const CompletionCall& call, const ApiContext& context,
                                const std::vector<TokenScore>& scores) {
  AnswerJson list = AnswerJson::array();
  for (const TokenScore& score : scores) {
    if (!score.scored) {
      list.push_back(nullptr);
      continue;
    }
    AnswerJson entry = AnswerJson::object();
    const auto add = [&](int32_t token, float logprob, int32_t rank) {
      entry.emplace(
          std::to_string(token),
          AnswerJson{{"logprob", finite_logprob(logprob)},
                     {"rank", rank},
                     {"decoded_token", token_name(context.tokenizer, token, call.tokens_as_ids)}});
    };
    int32_t rank = 0;
    for (const auto& [token, logprob] : score.logprobs.best) add(token, logprob, ++rank);
    add(score.token, score.logprobs.logprob, score.logprobs.rank);  // If it is not there already
    list.push_back(std::move(entry));
  }
  return list;
}

AnswerJson finish_reason_json(const ChoiceText& piece) {
  if (!piece.finished) return {};
  return piece.hit_length ? "length" : "stop";
}

AnswerJson stop_reason_json(const ChoiceText& piece) {
  if (piece.stop_string) return *piece.stop_string;
  if (piece.stop_token) return *piece.stop_token;
  return {};
}

}  // namespace spillway
