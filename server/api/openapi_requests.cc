#include "server/api/openapi_requests.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/chat_parse.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

// Schemas of fields. All of a request's may be null, which counts as absent.
Json nullable(const char* type, const char* text) {
  return {{"type", {type, "null"}}, {"description", text}};
}

Json flag(bool otherwise, const char* text) {
  Json schema = nullable("boolean", text);
  schema["default"] = otherwise;
  return schema;
}

Json integer(int64_t least, int64_t most, const char* text) {
  Json schema = nullable("integer", text);
  schema["minimum"] = least;
  schema["maximum"] = most;
  return schema;
}

Json number(double least, double most, double otherwise, const char* text) {
  Json schema = nullable("number", text);
  schema["minimum"] = least;
  schema["maximum"] = most;
  schema["default"] = otherwise;
  return schema;
}

Json one_of(std::initializer_list<const char*> names, const char* text) {
  Json schema = nullable("string", text);
  schema["enum"] = Json::array();
  for (const char* name : names) schema["enum"].push_back(name);
  schema["enum"].push_back(nullptr);
  return schema;
}

Json list_of(Json items, int64_t least, int64_t most, const char* text) {
  Json schema = nullable("array", text);
  schema["items"] = std::move(items);
  if (least > 0) schema["minItems"] = least;
  schema["maxItems"] = most;
  return schema;
}

Json token_id(const ApiContext& context) {
  return {{"type", "integer"}, {"minimum", 0}, {"maximum", context.shape->vocabulary - 1}};
}

Json amount(const char* text) {
  Json schema = nullable("number", text);
  schema["minimum"] = 0;
  return schema;
}

Json kv_properties() {
  return {{"kv_rule", one_of({"full", "h2o", "window", "random", "snap"},
                             "Which cached positions the sequence keeps; the server's by default")},
          {"kv_heavy", amount("Positions that are chosen: a whole number, or a ratio below 1")},
          {"kv_recent", amount("The last positions: a whole number, or a ratio below 1")},
          {"kv_keep",
           {{"description", "The first positions, which always stay: a number, a ratio or prompt"},
            {"anyOf", {amount("A number or a ratio"), {{"type", "string"}, {"const", "prompt"}}}}}},
          {"kv_sink", integer(0, int64_t{1} << 20, "Another name of kv_keep, for window")},
          {"kv_ratio_of", one_of({"prompt", "total"}, "What ratios are of")},
          {"kv_snap", one_of({"mean", "max"}, "How snap joins the scores of its queries")}};
}

Json stop_schema(const ApiContext& context) {
  const ApiLimits& limits = context.limits;
  const Json text = {{"type", "string"}, {"minLength", 1}, {"maxLength", limits.stop_bytes_max}};
  return {
      {"description", "Texts that end the answer; a length counts bytes"},
      {"anyOf", {text, list_of(text, 0, limits.stops_max, "Several of them"), {{"type", "null"}}}}};
}

Json bias_schema(const ApiContext& context) {
  Json schema = nullable(
      "object",
      "Added to the logits of token ids, which are the keys; -100 to 100, beyond it the nearest");
  schema["propertyNames"] = {{"pattern", "^[0-9]{1,9}$"}};
  schema["additionalProperties"] = {{"type", "number"}};
  schema["maxProperties"] = context.limits.logit_bias_max;
  return schema;
}

Json stream_options_schema() {
  Json schema = nullable("object", "With stream alone");
  schema["properties"] = {
      {"include_usage", flag(true, "A last chunk has the usage")},
      {"continuous_usage_stats", flag(false, "Every chunk has the usage so far")}};
  return schema;
}

// What both kinds of completions take.
Json common_properties(const ApiContext& context) {
  const ApiLimits& limits = context.limits;
  const int64_t positions = context.shape->positions;
  Json model = nullable("string", "A name of the model that is served");
  model["enum"] = context.model_names;
  model["enum"].push_back(nullptr);
  Json seed = nullable("integer", "The same seed and request give the same tokens; -1: none");
  seed["format"] = "int64";
  Json top_p = number(0, 1, 1, "Keeps the likeliest tokens of this mass");
  top_p.erase("minimum");
  top_p["exclusiveMinimum"] = 0;
  Json priority = nullable("integer", "Lower goes first, as far as the operator allows it");
  if (limits.priority_min > INT32_MIN) priority["minimum"] = limits.priority_min;
  if (limits.priority_max < INT32_MAX) priority["maximum"] = limits.priority_max;
  Json request_id = nullable("string", "A part of the answer's id");
  request_id["pattern"] = "^[A-Za-z0-9_.:-]{1,128}$";
  Json salt = nullable("string", "Shares cached beginnings of prompts with equal salts alone");
  salt["minLength"] = 1;
  salt["maxLength"] = 256;
  Json properties = {
      {"model", std::move(model)},
      {"max_tokens", integer(0, positions, "New tokens at most")},
      {"max_completion_tokens", integer(0, positions, "The newer name of max_tokens")},
      {"min_tokens", integer(0, positions, "New tokens at least")},
      {"n", integer(1, limits.samples_max, "Choices of each prompt")},
      {"temperature", number(0, 2, 1, "0: always the likeliest token")},
      {"top_p", std::move(top_p)},
      {"top_k", integer(-1, INT32_MAX, "Keeps so many of the likeliest tokens; -1 or 0: all")},
      {"min_p", number(0, 1, 0, "Keeps tokens of this share of the likeliest one's mass")},
      {"repetition_penalty", number(0.001, 100, 1, "Of tokens that prompt or answer have")},
      {"presence_penalty", number(-2, 2, 0, "Of tokens that the answer has")},
      {"frequency_penalty", number(-2, 2, 0, "Of tokens, as often as the answer has them")},
      {"logit_bias", bias_schema(context)},
      {"seed", std::move(seed)},
      {"stop", stop_schema(context)},
      {"stop_token_ids", list_of(token_id(context), 0, limits.stop_tokens_max,
                                 "Tokens that end the answer beside the model's own")},
      {"include_stop_str_in_output", flag(false, "The answer ends with the stop text")},
      {"ignore_eos", flag(false, "Goes on behind the model's end tokens")},
      {"skip_special_tokens", flag(true, "Leaves special tokens out of the text")},
      {"prompt_logprobs",
       integer(0, limits.logprobs_max, "Likeliest tokens at each of the prompt")},
      {"return_token_ids", flag(false, "Choices have token_ids; answers have prompt_token_ids")},
      {"return_tokens_as_token_ids", flag(false, "Tokens are named token_id:7")},
      {"stream", flag(false, "The answer comes in server-sent events")},
      {"stream_options", stream_options_schema()},
      {"stream_interval", integer(1, INT32_MAX, "Tokens of a chunk behind the first, at least")},
      {"sse_ping_interval", integer(-1, 3600, "Seconds of silence before a ping; -1: none")},
      {"timings_per_token", flag(false, "Chunks and whole answers have timings")},
      {"return_progress", flag(false, "Chunks tell how far the prompts are")},
      {"timeout", number(0, 365.0 * 24 * 3600, 0, "Seconds until the request fails; 0: never")},
      {"priority", std::move(priority)},
      {"request_id", std::move(request_id)},
      {"cache_salt", std::move(salt)},
      {"user", nullable("string", "Has no effect")}};
  properties.update(kv_properties());
  return properties;
}

Json completion_request(const ApiContext& context) {
  const ApiLimits& limits = context.limits;
  const int64_t positions = context.shape->positions;
  Json properties = common_properties(context);
  const Json text = {{"type", "string"}, {"minLength", 1}};
  Json ids = {{"type", "array"}, {"items", token_id(context)}, {"minItems", 1}};
  ids["maxItems"] = positions;
  const auto several = [&](const Json& items) -> Json {
    return {
        {"type", "array"}, {"items", items}, {"minItems", 1}, {"maxItems", limits.sequences_max}};
  };
  properties["prompt"] = {{"description", "A text, token ids, or a list of either"},
                          {"anyOf", {text, ids, several(text), several(ids)}}};
  properties["max_tokens"]["default"] = 16;
  properties["echo"] = flag(false, "The answer begins with the prompt");
  properties["logprobs"] = integer(0, limits.logprobs_max, "Likeliest tokens beside each");
  properties["add_special_tokens"] = flag(true, "Texts get the model's first token in front");
  properties["parse_special"] = flag(true, "Special tokens in texts are these tokens");
  properties["truncate_prompt_tokens"] =
      integer(-1, positions, "Cuts prompts; -1: as far as needed");
  properties["truncation_side"] = one_of({"left", "right"}, "Which side is cut");
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", {"prompt"}}};
}

Json message_schema() {
  const Json part = {
      {"type", "object"},
      {"properties",
       {{"type", {{"type", "string"}, {"const", "text"}}}, {"text", {{"type", "string"}}}}},
      {"required", {"type", "text"}}};
  return {{"type", "object"},
          {"properties",
           {{"role", {{"type", "string"}, {"enum", {"system", "developer", "user", "assistant"}}}},
            {"content", {{"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", part}}}}}},
            {"name", nullable("string", "Has no effect")}}},
          {"required", {"role", "content"}}};
}

Json messages_schema() {
  return {{"type", "array"},
          {"items", message_schema()},
          {"minItems", 1},
          {"maxItems", kChatMessagesMax}};
}

Json chat_request(const ApiContext& context) {
  Json properties = common_properties(context);
  properties["messages"] = messages_schema();
  properties["logprobs"] = flag(false, "Choices have the log-probability of each token");
  properties["top_logprobs"] =
      integer(0, context.limits.logprobs_max, "Likeliest tokens beside each, with logprobs alone");
  properties["add_generation_prompt"] = flag(true, "The prompt ends where an answer begins");
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", {"messages"}}};
}

Json batch_request() {
  Json metadata = nullable("object", "Up to 16 pairs of your own");
  metadata["additionalProperties"] = {{"type", "string"}, {"maxLength", 512}};
  metadata["maxProperties"] = 16;
  metadata["propertyNames"] = {{"maxLength", 64}};
  Json expiry = nullable("object", "When the files with the results expire");
  expiry["properties"] = {
      {"anchor", {{"type", "string"}, {"const", "created_at"}}},
      {"seconds", {{"type", "integer"}, {"minimum", 3600}, {"maximum", 2592000}}}};
  expiry["required"] = {"anchor", "seconds"};
  return {
      {"type", "object"},
      {"properties",
       {{"input_file_id", {{"type", "string"}}},
        {"endpoint", {{"type", "string"}, {"enum", {"/v1/completions", "/v1/chat/completions"}}}},
        {"completion_window",
         {{"type", "string"},
          {"description", "A time such as 24h, 90m or 7d, or none"},
          {"pattern", "^([1-9][0-9]{0,3}[mhd]|none)$"}}},
        {"metadata", std::move(metadata)},
        {"output_expires_after", std::move(expiry)}}},
      {"required", {"input_file_id", "endpoint", "completion_window"}}};
}

Json tokenize_request() {
  return {{"type", "object"},
          {"properties",
           {{"model", nullable("string", "A name of the model that is served")},
            {"prompt", nullable("string", "The text")},
            {"content", nullable("string", "The text, by llama.cpp's name")},
            {"messages", messages_schema()},
            {"add_generation_prompt", flag(true, "Of messages: ends where an answer begins")},
            {"add_special_tokens",
             nullable("boolean",
                      "With the model's first token in front; true for prompt, false for content")},
            {"add_special", nullable("boolean", "Another name of add_special_tokens")},
            {"parse_special", flag(true, "Special tokens in the text are these tokens")},
            {"return_token_strs", flag(false, "With the tokens' texts")},
            {"with_pieces",
             flag(false, "Tokens are objects of id and piece, a text or else a list of bytes")}}}};
}

Json detokenize_request(const ApiContext& context) {
  return {{"type", "object"},
          {"properties",
           {{"model", nullable("string", "A name of the model that is served")},
            {"tokens", {{"type", "array"}, {"items", token_id(context)}}}}},
          {"required", {"tokens"}}};
}

Json upload_form() {
  return {{"type", "object"},
          {"properties",
           {{"purpose", {{"type", "string"}, {"const", "batch"}}},
            {"file", {{"type", "string"}, {"contentMediaType", "application/jsonl"}}},
            {"expires_after[anchor]", {{"type", "string"}, {"const", "created_at"}}},
            {"expires_after[seconds]",
             {{"type", "integer"}, {"minimum", 3600}, {"maximum", 2592000}}}}},
          {"required", {"purpose", "file"}}};
}

}  // namespace

nlohmann::ordered_json request_schemas(const ApiContext& context) {
  return {{"CompletionRequest", completion_request(context)},
          {"ChatCompletionRequest", chat_request(context)},
          {"TokenizeRequest", tokenize_request()},
          {"DetokenizeRequest", detokenize_request(context)},
          {"Upload", upload_form()},
          {"BatchRequest", batch_request()}};
}

}  // namespace spillway
