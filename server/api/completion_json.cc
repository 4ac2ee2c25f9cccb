#include "server/api/completion_json.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/api/text.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

// Numbers are floats: "-0.1" and not "-0.10000000149011612".
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t,
                                  uint64_t, float>;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// JSON has no infinity; clients of vLLM know -9999.
float finite(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0f;
}

struct Writer {
  const CompletionHead& head;
  const CompletionCall& call;
  const ApiContext& context;

  Json beginning() const {
    return {{"id", head.id},
            {"object", "text_completion"},
            {"created", head.created},
            {"model", call.model},
            {"system_fingerprint", context.fingerprint}};
  }
  Json envelope() const {
    Json json = beginning();
    json["choices"] = Json::array();
    return json;
  }

  std::string name(int32_t token) const {
    return token_name(context.tokenizer, token, call.tokens_as_ids);
  }

  Json best(const TokenScore& score) const {
    Json names = Json::object();
    for (const auto& [token, logprob] : score.logprobs.best) {
      names.emplace(name(token), finite(logprob));  // Two tokens of one name: the likelier stays
    }
    names.emplace(name(score.token), finite(score.logprobs.logprob));
    return names;
  }

  Json logprobs(const std::vector<TokenScore>& scores) const {
    Json tokens = Json::array();
    Json values = Json::array();
    Json tops = Json::array();
    Json offsets = Json::array();
    for (const TokenScore& score : scores) {
      tokens.push_back(name(score.token));
      values.push_back(score.scored ? Json(finite(score.logprobs.logprob)) : Json());
      tops.push_back(score.scored ? best(score) : Json());
      offsets.push_back(score.text_offset);
    }
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
  }

  Json stop_reason(const ChoiceText& piece) const {
    if (piece.stop_string) return *piece.stop_string;
    if (piece.stop_token) return *piece.stop_token;
    return {};
  }

  Json choice(const ChoiceText& piece) const {
    Json json = {{"index", piece.index},
                 {"text", piece.text},
                 {"logprobs", call.logprobs >= 0 ? logprobs(piece.scores) : Json()},
                 {"finish_reason", Json()},
                 {"stop_reason", stop_reason(piece)}};
    if (piece.finished) json["finish_reason"] = piece.hit_length ? "length" : "stop";
    if (call.return_token_ids) {
      json["token_ids"] = piece.tokens;
      if (piece.first) {
        json["prompt_token_ids"] = call.requests[static_cast<size_t>(piece.index)].prompt;
      }
    }
    return json;
  }
};

Json usage_json(const CompletionUsage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.generated_tokens},
               {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.kv.rule != KvRuleKind::kFull) {
    json["kv_cache"] = {{"rule", kv_rule_name(usage.kv.rule)},
                        {"rows_kept", usage.kv.rows_kept},
                        {"rows_dropped", usage.kv.rows_dropped},
                        {"bytes_saved", usage.kv.bytes_saved}};
    if (usage.kv.rows_raised > 0) json["kv_cache"]["rows_raised"] = usage.kv.rows_raised;
  }
  return json;
}

}  // namespace

std::string completion_usage(const CompletionUsage& usage) {
  return dump(usage_json(usage));
}

CompletionHead make_completion_head(const CompletionCall& call) {
  return {(call.chat ? "chatcmpl-" : "cmpl-") +
              (call.request_id.empty() ? random_hex(24) : call.request_id),
          static_cast<int64_t>(std::time(nullptr))};
}

std::string completion_body(const CompletionHead& head, const CompletionCall& call,
                            const ApiContext& context, const CompletionResult& result) {
  const Writer writer{head, call, context};
  // A choice with logprobs is a large tree: build one at a time, so that memory holds the text and
  // one tree.
  std::string text = dump(writer.beginning());
  text.back() = ',';
  text += "\"choices\":[";
  for (const ChoiceText& choice : result.choices) {
    if (&choice != &result.choices.front()) text += ',';
    text += dump(writer.choice(choice));
  }
  return text + "],\"usage\":" + dump(usage_json(result.usage)) + "}";
}

std::string completion_chunk(const CompletionHead& head, const CompletionCall& call,
                             const ApiContext& context, const ChoiceText& piece) {
  const Writer writer{head, call, context};
  Json json = writer.envelope();
  json["choices"].push_back(writer.choice(piece));
  if (call.continuous_usage) {
    json["usage"] = usage_json(piece.usage);
  } else if (call.include_usage) {
    json["usage"] = nullptr;
  }
  return dump(json);
}

std::string completion_usage_chunk(const CompletionHead& head, const CompletionCall& call,
                                   const ApiContext& context, const CompletionUsage& usage) {
  Json json = Writer{head, call, context}.envelope();
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string completion_ping_chunk(const CompletionHead& head, const CompletionCall& call,
                                  const ApiContext& context) {
  Json json = Writer{head, call, context}.envelope();
  json["usage"] = nullptr;
  return dump(json);
}

}  // namespace spillway
