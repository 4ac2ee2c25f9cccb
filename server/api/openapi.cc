#include "server/api/openapi.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "server/api/openapi_requests.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

Json plain(const char* type) {
  return {{"type", type}};
}

Json reference(const char* name) {
  return {{"$ref", std::string("#/components/schemas/") + name}};
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
  Json all = request_schemas(context);
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
                                 {"tokens", array_of({{"type", {"integer", "object"}}})}});
  all["Text"] = answer_schema({{"prompt", plain("string")}, {"content", plain("string")}});
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

constexpr const char* kEvents = "text/event-stream";

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
     {429, 503},
     "",
     kEvents},
    {"get", "/openapi.json", "openapi", "This document", nullptr, "Document", {}},
    {"get", "/metrics", "metrics", "Metrics for Prometheus", nullptr, nullptr, {}},
    {"get", "/health", "health", "Whether the server can answer", nullptr, "Health", {503}},
};

// Of one server-sent event: what tools hold each event of a stream against.
Json event_schema() {
  return {{"type", "object"}, {"properties", {{"data", plain("string")}}}};
}

Json responses_of(const Operation& operation) {
  Json responses;
  const bool text = operation.answer == nullptr;
  const bool json = std::string_view(operation.answer_type) == "application/json";
  Json content = json_content(text ? plain("string") : reference(operation.answer));
  const bool events = std::string_view(operation.answer_type) == kEvents;
  if (text) {
    content = {{json ? "text/plain" : operation.answer_type,
                {{"schema", events ? event_schema() : plain("string")}}}};
  }
  if (operation.request != nullptr && std::string_view(operation.path).ends_with("completions")) {
    content[kEvents] = {{"schema", event_schema()}};
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
