#include "server/api/completion_json.h"

#include <nlohmann/json.hpp>

#include "server/api/text.h"

namespace spillway {
namespace {

struct Writer {
  const CompletionCall& call;
  const ApiContext& context;

  std::string name(int32_t token) const {
    return token_name(context.tokenizer, token, call.tokens_as_ids);
  }

  AnswerJson best(const TokenScore& score) const {
    AnswerJson names = AnswerJson::object();
    for (const auto& [token, logprob] : score.logprobs.best) {
      names.emplace(name(token), finite_logprob(logprob));  // Two of one name: the likelier stays
    }
    names.emplace(name(score.token), finite_logprob(score.logprobs.logprob));
    return names;
  }

  AnswerJson logprobs(const std::vector<TokenScore>& scores) const {
    AnswerJson tokens = AnswerJson::array();
    AnswerJson values = AnswerJson::array();
    AnswerJson tops = AnswerJson::array();
    AnswerJson offsets = AnswerJson::array();
    for (const TokenScore& score : scores) {
      tokens.push_back(name(score.token));
      values.push_back(score.scored ? AnswerJson(finite_logprob(score.logprobs.logprob))
                                    : AnswerJson());
      tops.push_back(score.scored ? best(score) : AnswerJson());
      offsets.push_back(score.text_offset);
    }
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
  }
};

}  // namespace

AnswerJson completion_choice(const CompletionCall& call, const ApiContext& context,
                             const ChoiceText& piece) {
  AnswerJson json = {{"index", piece.index},
                     {"text", piece.text},
                     {"logprobs", nullptr},
                     {"finish_reason", finish_reason_json(piece)},
                     {"stop_reason", stop_reason_json(piece)}};
  if (call.logprobs >= 0) json["logprobs"] = Writer{call, context}.logprobs(piece.scores);
  if (call.prompt_logprobs >= 0) {
    json["prompt_logprobs"] = prompt_logprobs_json(call, context, piece.prompt_scores);
  }
  if (call.return_token_ids) {
    json["token_ids"] = piece.tokens;
    if (piece.first) {
      json["prompt_token_ids"] = call.requests[static_cast<size_t>(piece.index)].prompt;
    }
  }
  return json;
}

}  // namespace spillway
