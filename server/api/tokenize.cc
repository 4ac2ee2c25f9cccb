// POST /tokenize and /detokenize, GET /tokenizer_info: vLLM's shapes, with llama.cpp's names as
// aliases.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/api/chat_parse.h"
#include "server/api/completion_prompt.h"
#include "server/api/json_input.h"
#include "server/api/service.h"
#include "server/api/text.h"
#include "server/chat/chat_template.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

ApiError no_tokenizer(const ApiContext& context) {
  ApiError error;
  error.status = 501;
  error.message = "Prompts are token ids: " + why_no_tokenizer(context) + ".";
  error.code = "no_tokenizer";
  error.retry_is_useless = true;
  return error;
}

void check_model(FieldReader& fields, const ApiContext& context) {
  const auto name = fields.string("model");
  const auto& served = context.model_names;
  if (name && std::find(served.begin(), served.end(), *name) == served.end()) {
    fields.fail(model_not_found(served));
  }
}

// The ids of `prompt`, or of llama.cpp's `content`.
std::vector<int32_t> read_text(FieldReader& fields, const ApiContext& context) {
  const bool add_special = fields.flag("add_special_tokens", fields.flag("add_special", true));
  const bool parse_special = fields.flag("parse_special", true);
  const auto prompt = fields.string("prompt");
  const auto content = fields.string("content");
  const auto text = prompt ? prompt : content;
  if (!text) fields.fail(missing_parameter("prompt"));
  if (text && static_cast<int64_t>(text->size()) > context.limits.tokenize_bytes_max) {
    fields.fail(invalid_value(
        "prompt",
        "must not have more than " + std::to_string(context.limits.tokenize_bytes_max) + " bytes"));
  }
  if (fields.failed()) return {};
  auto encoded = encode_prompt(*context.tokenizer, *text, add_special, parse_special);
  if (encoded.ok()) return std::move(encoded).value();
  fields.fail(
      invalid_value("prompt", "cannot be read: " + std::string(encoded.status().message())));
  return {};
}

ApiResult<Json> tokenize(const nlohmann::json& body, const ApiContext& context) {
  FieldReader fields(body);
  check_model(fields, context);
  const bool with_names = fields.flag("return_token_strs", false);
  const bool chat = fields.find("messages") != nullptr;
  if (chat && fields.find("prompt") != nullptr) {
    fields.fail(invalid_value("messages", "cannot be given beside prompt"));
  }
  const std::vector<int32_t> ids =
      chat ? read_chat_prompt(fields, context, ChatPromptUse::kTokens) : read_text(fields, context);
  if (context.limits.strict_params) fields.refuse_unknown();
  if (fields.failed()) return fields.error();
  Json names;
  if (with_names) {
    names = Json::array();
    for (const int32_t id : ids) names.push_back(token_name(context.tokenizer, id, false));
  }
  return Json{{"count", ids.size()},
              {"max_model_len", context.shape->positions},
              {"tokens", ids},
              {"token_strs", std::move(names)}};
}

ApiResult<Json> detokenize(const nlohmann::json& body, const ApiContext& context) {
  FieldReader fields(body);
  check_model(fields, context);
  const nlohmann::json* tokens = fields.find("tokens");
  if (tokens == nullptr) fields.fail(missing_parameter("tokens"));
  if (context.limits.strict_params) fields.refuse_unknown();
  if (fields.failed()) return fields.error();
  if (tokens->is_array() && tokens->empty()) return Json{{"prompt", ""}};
  auto ids = read_token_ids(*tokens, context.shape->vocabulary, "tokens");
  if (auto* error = std::get_if<ApiError>(&ids)) return std::move(*error);
  return Json{
      {"prompt", decode_tokens(*context.tokenizer, std::get<std::vector<int32_t>>(ids), false)}};
}

using Answer = ApiResult<Json> (*)(const nlohmann::json&, const ApiContext&);

void answer_on_worker(ApiService& api, HttpRequest request, const ExchangePtr& exchange,
                      Answer answer) {
  if (api.context.tokenizer == nullptr)
    return exchange->respond(error_response(no_tokenizer(api.context)));
  auto ticket = api.admission.enter(request.client);
  if (!ticket) {
    return exchange->respond(error_response(queue_full(api.admission.retry_after_seconds())));
  }
  exchange->post_bulk_work([&api, exchange, answer, body = std::move(request.body),
                            lease = std::move(request.body_lease),
                            held = std::make_shared<Admission::Ticket>(*std::move(ticket))] {
    auto json = parse_body(body, api.context.limits.json_values_max);
    auto* error = std::get_if<ApiError>(&json);
    if (error != nullptr) return exchange->respond(error_response(*error));
    auto result = answer(std::get<nlohmann::json>(json), api.context);
    error = std::get_if<ApiError>(&result);
    if (error != nullptr) return exchange->respond(error_response(*error));
    HttpResponse response;
    response.body = std::get<Json>(result).dump(-1, ' ', false, Json::error_handler_t::replace);
    exchange->respond(std::move(response));
  });
}

Json special_token(const ApiContext& context, int32_t token) {
  if (token < 0) return {};
  return token_name(context.tokenizer, token, false);
}

}  // namespace

void handle_tokenizer_info(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  const ApiContext& context = api.context;
  if (context.tokenizer == nullptr) {
    return exchange->respond(error_response(no_tokenizer(context)));
  }
  const SpecialTokens special = special_tokens(*context.tokenizer);
  Json info = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"bos_token", special_token(context, special.bos)},
               {"eos_token", special_token(context, special.eos)},
               {"pad_token", special_token(context, special.pad)},
               {"add_bos_token", special.adds_bos},
               {"model_max_length", context.shape->positions},
               {"chat_template", nullptr}};
  if (context.chat != nullptr) info["chat_template"] = context.chat->source();
  HttpResponse response;
  response.body = info.dump(-1, ' ', false, Json::error_handler_t::replace);
  exchange->respond(std::move(response));
}

void handle_tokenize(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  answer_on_worker(api, std::move(request), exchange, tokenize);
}

void handle_detokenize(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  answer_on_worker(api, std::move(request), exchange, detokenize);
}

}  // namespace spillway
