#include "server/api/openapi.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "server/api/chat_parse.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json plain(const char* type) {
  return {{"type", type}};
}

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

Json reference(const char* name) {
  return {{"$ref", std::string("#/components/schemas/") + name}};
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
  Json schema = nullable("object", "Added to the logits of token ids, which are the keys");
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
      {"return_token_ids", flag(false, "Choices have token_ids and prompt_token_ids")},
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
       {{"input_file_id", plain("string")},
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
            {"content", nullable("string", "Another name of prompt")},
            {"messages", messages_schema()},
            {"add_generation_prompt", flag(true, "Of messages: ends where an answer begins")},
            {"add_special_tokens", flag(true, "With the model's first token in front")},
            {"add_special", flag(true, "Another name of add_special_tokens")},
            {"parse_special", flag(true, "Special tokens in the text are these tokens")},
            {"return_token_strs", flag(false, "With the tokens' texts")}}}};
}

Json detokenize_request(const ApiContext& context) {
  return {{"type", "object"},
          {"properties",
           {{"model", nullable("string", "A name of the model that is served")},
            {"tokens", {{"type", "array"}, {"items", token_id(context)}}}}},
          {"required", {"tokens"}}};
}

// An object of an answer: these fields at least.
Json answer_schema(std::initializer_list<std::pair<const char*, Json>> fields) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (const auto& [name, field] : fields) {
    schema["properties"][name] = field;
    schema["required"].push_back(name);
  }
  return schema;
}

Json array_of(Json items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}

Json schemas(const ApiContext& context) {
  const Json maybe_text = {{"type", {"string", "null"}}};
  Json all;
  all["CompletionRequest"] = completion_request(context);
  all["ChatCompletionRequest"] = chat_request(context);
  all["TokenizeRequest"] = tokenize_request();
  all["DetokenizeRequest"] = detokenize_request(context);
  all["Usage"] = answer_schema({{"prompt_tokens", plain("integer")},
                                {"completion_tokens", plain("integer")},
                                {"total_tokens", plain("integer")}});
  all["CompletionChoice"] = answer_schema({{"index", plain("integer")},
                                           {"text", plain("string")},
                                           {"logprobs", {{"type", {"object", "null"}}}},
                                           {"finish_reason", maybe_text}});
  all["ChatMessage"] = answer_schema({{"role", plain("string")}, {"content", plain("string")}});
  all["ChatChoice"] = answer_schema({{"index", plain("integer")},
                                     {"message", reference("ChatMessage")},
                                     {"logprobs", {{"type", {"object", "null"}}}},
                                     {"finish_reason", maybe_text}});
  const auto completion = [&](const char* choice) {
    return answer_schema({{"id", plain("string")},
                          {"object", plain("string")},
                          {"created", plain("integer")},
                          {"model", plain("string")},
                          {"choices", array_of(reference(choice))},
                          {"usage", reference("Usage")}});
  };
  all["Completion"] = completion("CompletionChoice");
  all["ChatCompletion"] = completion("ChatChoice");
  all["Model"] = answer_schema(
      {{"id", plain("string")}, {"object", plain("string")}, {"max_model_len", plain("integer")}});
  all["Models"] =
      answer_schema({{"object", plain("string")}, {"data", array_of(reference("Model"))}});
  all["Tokens"] = answer_schema({{"count", plain("integer")},
                                 {"max_model_len", plain("integer")},
                                 {"tokens", array_of(plain("integer"))}});
  all["Text"] = answer_schema({{"prompt", plain("string")}});
  all["TokenizerInfo"] = answer_schema(
      {{"tokenizer_class", plain("string")}, {"eos_token", maybe_text}, {"bos_token", maybe_text}});
  all["File"] = answer_schema({{"id", plain("string")},
                               {"object", plain("string")},
                               {"bytes", plain("integer")},
                               {"created_at", plain("integer")},
                               {"filename", plain("string")},
                               {"purpose", plain("string")}});
  all["Deleted"] = answer_schema({{"id", plain("string")}, {"deleted", plain("boolean")}});
  all["Batch"] = answer_schema({{"id", plain("string")},
                                {"object", plain("string")},
                                {"endpoint", plain("string")},
                                {"input_file_id", plain("string")},
                                {"completion_window", plain("string")},
                                {"status", plain("string")},
                                {"created_at", plain("integer")}});
  const auto list_of_all = [&](const char* item) {
    return answer_schema({{"object", plain("string")},
                          {"data", array_of(reference(item))},
                          {"has_more", plain("boolean")}});
  };
  all["Files"] = list_of_all("File");
  all["Batches"] = list_of_all("Batch");
  all["Upload"] = {{"type", "object"},
                   {"properties",
                    {{"purpose", {{"type", "string"}, {"const", "batch"}}},
                     {"file", {{"type", "string"}, {"contentMediaType", "application/jsonl"}}},
                     {"expires_after[anchor]", {{"type", "string"}, {"const", "created_at"}}},
                     {"expires_after[seconds]",
                      {{"type", "integer"}, {"minimum", 3600}, {"maximum", 2592000}}}}},
                   {"required", {"purpose", "file"}}};
  all["BatchRequest"] = batch_request();
  all["Load"] = answer_schema({{"server_load", plain("integer")}});
  all["Version"] = answer_schema({{"version", plain("string")}});
  all["Health"] = answer_schema({{"status", plain("string")}});
  all["Error"] = answer_schema({{"error", answer_schema({{"message", plain("string")},
                                                         {"type", plain("string")},
                                                         {"param", maybe_text},
                                                         {"code", maybe_text}})}});
  return all;
}

const char* meaning_of(int status) {
  switch (status) {
    case 400:
      return "Something in the request is wrong; `param` names the field";
    case 401:
      return "No key, or a wrong one";
    case 403:
      return "A foreign host, a page of another origin, or a priority that is not allowed";
    case 404:
      return "There is no model of this name";
    case 408:
      return "The request came too slowly";
    case 409:
      return "A batch needs this file, or the batch has ended";
    case 413:
      return "The body is too large, or more than a client may store";
    case 415:
      return "The body is no JSON in UTF-8";
    case 417:
      return "The Expect header is not understood";
    case 429:
      return "The queue is full, or a limit of this client is reached; see Retry-After";
    case 431:
      return "The head is too large";
    case 500:
      return "The engine failed while it ran this request";
    case 501:
      return "The model has no tokenizer";
    case 507:
      return "The server cannot store this now";
    default:
      return "The server cannot answer now, or took longer than allowed";
  }
}

Json json_content(const Json& schema) {
  return {{"application/json", {{"schema", schema}}}};
}

struct Operation {
  const char* method;
  const char* path;
  const char* id;
  const char* summary;
  const char* request;                    // A schema's name; null: there is no body
  const char* answer;                     // Likewise; null: text
  std::initializer_list<int> statuses;    // Beside those that every request may get
  const char* type = "application/json";  // Of the request
  const char* answer_type = "application/json";
};

const Operation kBatchOperations[] = {
    {"post",
     "/v1/files",
     "uploadFile",
     "Hands in a file",
     "Upload",
     "File",
     {413, 415, 429, 503, 507},
     "multipart/form-data"},
    {"get", "/v1/files", "listFiles", "The files, the newest first", nullptr, "Files", {404, 503}},
    {"get",
     "/v1/files/{file_id}",
     "retrieveFile",
     "What is known of a file",
     nullptr,
     "File",
     {404, 503}},
    {"get",
     "/v1/files/{file_id}/content",
     "fileContent",
     "The contents of a file",
     nullptr,
     nullptr,
     {404, 503, 507},
     "",
     "application/octet-stream"},
    {"delete",
     "/v1/files/{file_id}",
     "deleteFile",
     "Removes a file",
     nullptr,
     "Deleted",
     {404, 409, 503, 507}},
    {"post",
     "/v1/batches",
     "createBatch",
     "Runs the lines of a file",
     "BatchRequest",
     "Batch",
     {404, 413, 415, 429, 503, 507}},
    {"get",
     "/v1/batches",
     "listBatches",
     "The batches, the newest first",
     nullptr,
     "Batches",
     {404, 503}},
    {"get",
     "/v1/batches/{batch_id}",
     "retrieveBatch",
     "How far a batch is",
     nullptr,
     "Batch",
     {404, 503}},
    {"post",
     "/v1/batches/{batch_id}/cancel",
     "cancelBatch",
     "Ends a batch",
     nullptr,
     "Batch",
     {404, 409, 503, 507}},
};

// In the order of routes.cc.
const Operation kOperations[] = {
    {"post",
     "/v1/completions",
     "createCompletion",
     "Completes prompts",
     "CompletionRequest",
     "Completion",
     {404, 413, 415, 429, 500, 503}},
    {"post",
     "/v1/chat/completions",
     "createChatCompletion",
     "Answers a conversation",
     "ChatCompletionRequest",
     "ChatCompletion",
     {404, 413, 415, 429, 500, 503}},
    {"get", "/v1/models", "listModels", "The names of the model", nullptr, "Models", {}},
    {"get",
     "/v1/models/{model}",
     "retrieveModel",
     "One name of the model",
     nullptr,
     "Model",
     {404}},
    {"post",
     "/tokenize",
     "tokenize",
     "The token ids of a text or a conversation",
     "TokenizeRequest",
     "Tokens",
     {404, 413, 415, 429, 501, 503}},
    {"post",
     "/detokenize",
     "detokenize",
     "The text of token ids",
     "DetokenizeRequest",
     "Text",
     {404, 413, 415, 429, 501, 503}},
    {"get",
     "/tokenizer_info",
     "tokenizerInfo",
     "The special tokens and the chat template",
     nullptr,
     "TokenizerInfo",
     {501}},
    {"get", "/load", "load", "How many sequences are being answered", nullptr, "Load", {}},
    {"get", "/version", "version", "The program's version", nullptr, "Version", {}},
    {"get",
     "/api/events",
     "events",
     "What runs, once a second",
     nullptr,
     nullptr,
     {503},
     "",
     "text/event-stream"},
    {"get", "/openapi.json", "openapi", "This document", nullptr, "Document", {}},
    {"get", "/metrics", "metrics", "Metrics for Prometheus", nullptr, nullptr, {}},
    {"get", "/health", "health", "Whether the server can answer", nullptr, "Health", {503}},
};

Json responses_of(const Operation& operation) {
  Json responses;
  const bool text = operation.answer == nullptr;
  const bool json = std::string_view(operation.answer_type) == "application/json";
  Json content = json_content(text ? plain("string") : reference(operation.answer));
  if (text)
    content = {{json ? "text/plain" : operation.answer_type, {{"schema", plain("string")}}}};
  if (operation.request != nullptr && std::string_view(operation.path).ends_with("completions")) {
    content["text/event-stream"] = {{"schema", plain("string")}};
  }
  responses["200"] = {{"description", "The answer"}, {"content", std::move(content)}};
  const auto add = [&](int status) {
    responses[std::to_string(status)] = {{"description", meaning_of(status)},
                                         {"content", json_content(reference("Error"))}};
  };
  for (const int status : {400, 401, 403, 408, 417, 431}) add(status);
  for (const int status : operation.statuses) add(status);
  return responses;
}

void add_paths(Json& all, std::span<const Operation> operations) {
  for (const Operation& operation : operations) {
    Json& described = all[operation.path][operation.method];
    described = {{"operationId", operation.id}, {"summary", operation.summary}};
    const std::string_view path = operation.path;
    if (const size_t brace = path.find('{'); brace != std::string_view::npos) {
      const std::string name(path.substr(brace + 1, path.find('}') - brace - 1));
      described["parameters"] = {
          {{"name", name}, {"in", "path"}, {"required", true}, {"schema", plain("string")}}};
    }
    if (operation.request != nullptr) {
      described["requestBody"] = {
          {"required", true},
          {"content", {{operation.type, {{"schema", reference(operation.request)}}}}}};
    }
    described["responses"] = responses_of(operation);
  }
}

Json paths(bool batches) {
  Json all;
  add_paths(all, kOperations);
  if (batches) add_paths(all, kBatchOperations);
  return all;
}

}  // namespace

nlohmann::ordered_json openapi_document(const ApiContext& context, bool batches) {
  Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Spillway"},
        {"version", SPILLWAY_VERSION},
        {"description",
         "OpenAI's API, with fields of vLLM and llama.cpp. Unknown fields are named in "
         "the header x-ignored-parameters, or refused (--strict-params)."}}},
      {"paths", paths(batches)},
      {"components",
       {{"schemas", schemas(context)},
        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
      {"security", Json::array({Json::object(), {{"key", Json::array()}}})}};
  document["components"]["schemas"]["Document"] = plain("object");
  return document;
}

}  // namespace spillway
