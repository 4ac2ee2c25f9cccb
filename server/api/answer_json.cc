#include "server/api/answer_json.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "server/api/chat_json.h"
#include "server/api/completion_json.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

std::string dump(const AnswerJson& json) {
  return json.dump(-1, ' ', false, AnswerJson::error_handler_t::replace);
}

// A chat has one prompt, so vLLM gives its ids beside the choices; completions have theirs in each.
bool has_prompt_ids(const CompletionCall& call) {
  return call.chat && call.return_token_ids;
}

AnswerJson beginning(const CompletionHead& head, const CompletionCall& call,
                     const ApiContext& context, bool chunk) {
  const char* const chat = chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id},
          {"object", call.chat ? chat : "text_completion"},
          {"created", head.created},
          {"model", call.model},
          {"system_fingerprint", context.fingerprint}};
}

AnswerJson chunk_without_choices(const CompletionHead& head, const CompletionCall& call,
                                 const ApiContext& context) {
  AnswerJson json = beginning(head, call, context, true);
  json["choices"] = AnswerJson::array();
  return json;
}

AnswerJson usage_json(const CompletionUsage& usage) {
  AnswerJson json = {{"prompt_tokens", usage.prompt_tokens},
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

AnswerJson seconds_per(double seconds, int64_t count, const char* each, const char* rate) {
  AnswerJson json = AnswerJson::object();
  const auto n = static_cast<double>(count);
  json[each] = count > 0 ? AnswerJson(static_cast<float>(1000 * seconds / n)) : AnswerJson();
  json[rate] = seconds > 0 ? AnswerJson(static_cast<float>(n / seconds)) : AnswerJson();
  return json;
}

// llama.cpp's timings, and the time in the queue.
AnswerJson timings_json(const CompletionUsage& usage, const CompletionTimes& times) {
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  AnswerJson json = {{"queue_ms", static_cast<float>(1000 * times.queue)},
                     {"cache_n", usage.cached_tokens},
                     {"prompt_n", computed},
                     {"prompt_ms", static_cast<float>(1000 * times.prompt)}};
  json.update(seconds_per(times.prompt, computed, "prompt_per_token_ms", "prompt_per_second"));
  json["predicted_n"] = usage.generated_tokens;
  json["predicted_ms"] = static_cast<float>(1000 * times.generation);
  json.update(seconds_per(times.generation, usage.generated_tokens, "predicted_per_token_ms",
                          "predicted_per_second"));
  return json;
}

}  // namespace

CompletionHead make_completion_head(const CompletionCall& call) {
  return {(call.chat ? "chatcmpl-" : "cmpl-") +
              (call.request_id.empty() ? random_hex(24) : call.request_id),
          static_cast<int64_t>(std::time(nullptr))};
}

std::string answer_body(const CompletionHead& head, const CompletionCall& call,
                        const ApiContext& context, const CompletionResult& result) {
  // A choice with logprobs is a large tree: build one at a time, so that memory holds the text and
  // one tree.
  std::string text = dump(beginning(head, call, context, false));
  text.back() = ',';
  text += "\"choices\":[";
  for (const ChoiceText& choice : result.choices) {
    if (&choice != &result.choices.front()) text += ',';
    text += dump(call.chat ? chat_choice(call, context, choice)
                           : completion_choice(call, context, choice));
  }
  text += "],\"usage\":" + dump(usage_json(result.usage));
  if (call.chat && call.prompt_logprobs >= 0) {  // There is one prompt
    text += ",\"prompt_logprobs\":" +
            dump(prompt_logprobs_json(call, context, result.choices.front().prompt_scores));
  }
  if (has_prompt_ids(call)) {
    text += ",\"prompt_token_ids\":" + dump(call.requests.front().prompt);
  }
  if (call.timings) text += ",\"timings\":" + dump(timings_json(result.usage, result.times));
  return text + "}";
}

std::string answer_chunk(const CompletionHead& head, const CompletionCall& call,
                         const ApiContext& context, const ChoiceText& piece) {
  AnswerJson json = chunk_without_choices(head, call, context);
  json["choices"].push_back(call.chat ? chat_delta(call, context, piece)
                                      : completion_choice(call, context, piece));
  if (call.continuous_usage) {
    json["usage"] = usage_json(piece.usage);
  } else if (call.include_usage) {
    json["usage"] = nullptr;
  }
  if (piece.first && has_prompt_ids(call)) {
    json["prompt_token_ids"] = call.requests.front().prompt;
  }
  if (call.timings) json["timings"] = timings_json(piece.usage, piece.times);
  return dump(json);
}

std::string answer_usage_chunk(const CompletionHead& head, const CompletionCall& call,
                               const ApiContext& context, const CompletionUsage& usage) {
  AnswerJson json = chunk_without_choices(head, call, context);
  json["usage"] = usage_json(usage);
  return dump(json);
}

std::string answer_progress_chunk(const CompletionHead& head, const CompletionCall& call,
                                  const ApiContext& context, const PromptProgress& progress) {
  AnswerJson json = chunk_without_choices(head, call, context);
  json["prompt_progress"] = {{"total", progress.tokens},
                             {"cache", progress.cached},
                             {"processed", progress.processed},
                             {"time_ms", static_cast<int64_t>(1000 * progress.seconds)}};
  return dump(json);
}

std::string answer_ping_chunk(const CompletionHead& head, const CompletionCall& call,
                              const ApiContext& context) {
  AnswerJson json = chunk_without_choices(head, call, context);
  json["usage"] = nullptr;
  return dump(json);
}

}  // namespace spillway
