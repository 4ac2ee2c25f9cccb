// POST /tokenize and /detokenize, GET /tokenizer_info: vLLM's shapes, with llama.cpp's names as
// aliases.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/api/chat_parse.h"
#include "server/api/completion_prompt.h"
#include "server/api/ignored_parameters.h"
#include "server/api/json_input.h"
#include "server/api/service.h"
#include "server/api/text.h"
#include "server/chat/chat_template.h"
#include "server/tokenizer/utf8.h"

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

// The ids of vLLM's `prompt`, or of llama.cpp's `content`.
std::vector<int32_t> read_text(FieldReader& fields, const ApiContext& context) {
  const bool parse_special = fields.flag("parse_special", true);
  const auto prompt = fields.string("prompt");
  const auto content = fields.string("content");
  // Clients of either program leave the option out where its default suits them.
  const bool otherwise = prompt || !content;
  const bool add_special = fields.flag("add_special_tokens", fields.flag("add_special", otherwise));
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

// A token as llama.cpp tells of it: a piece that is no text by itself is a list of its bytes.
Json piece_json(const Tokenizer& tokenizer, int32_t token) {
  const std::vector<uint8_t> bytes = token_bytes(tokenizer, token);
  std::string text(bytes.begin(), bytes.end());
  if (!is_valid_utf8(text)) return {{"id", token}, {"piece", bytes}};
  return {{"id", token}, {"piece", std::move(text)}};
}

struct TokenAnswer {
  Json json;
  IgnoredParameters ignored;
};

ApiResult<TokenAnswer> tokenize(const nlohmann::json& body, const ApiContext& context) {
  FieldReader fields(body);
  check_model(fields, context);
  const bool with_names = fields.flag("return_token_strs", false);
  const bool with_pieces = fields.flag("with_pieces", false);
  const bool chat = fields.find("messages") != nullptr;
  if (chat && fields.find("prompt") != nullptr) {
    fields.fail(invalid_value("messages", "cannot be given beside prompt"));
  }
  const std::vector<int32_t> ids =
      chat ? read_chat_prompt(fields, context, ChatPromptUse::kTokens) : read_text(fields, context);
  IgnoredParameters ignored = read_ignored(fields, context.limits.strict_params);
  if (fields.failed()) return fields.error();
  Json tokens = with_pieces ? Json::array() : Json(ids);
  for (size_t i = 0; with_pieces && i < ids.size(); ++i) {
    tokens.push_back(piece_json(*context.tokenizer, ids[i]));
  }
  Json names;
  if (with_names) {
    names = Json::array();
    for (const int32_t id : ids) names.push_back(token_name(context.tokenizer, id, false));
  }
  return TokenAnswer{{{"count", ids.size()},
                      {"max_model_len", context.shape->positions},
                      {"tokens", std::move(tokens)},
                      {"token_strs", std::move(names)}},
                     std::move(ignored)};
}

ApiResult<TokenAnswer> detokenize(const nlohmann::json& body, const ApiContext& context) {
  FieldReader fields(body);
  check_model(fields, context);
  const nlohmann::json* tokens = fields.find("tokens");
  if (tokens == nullptr) fields.fail(missing_parameter("tokens"));
  IgnoredParameters ignored = read_ignored(fields, context.limits.strict_params);
  if (fields.failed()) return fields.error();
  std::string text;
  if (!tokens->is_array() || !tokens->empty()) {
    auto ids = read_token_ids(*tokens, context.shape->vocabulary, "tokens");
    if (auto* error = std::get_if<ApiError>(&ids)) return std::move(*error);
    text = decode_tokens(*context.tokenizer, std::get<std::vector<int32_t>>(ids), false);
  }
  // Its names at vLLM and at llama.cpp.
  return TokenAnswer{{{"prompt", text}, {"content", text}}, std::move(ignored)};
}

using Answer = ApiResult<TokenAnswer> (*)(const nlohmann::json&, const ApiContext&);

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
    const TokenAnswer& made = std::get<TokenAnswer>(result);
    response.body = made.json.dump(-1, ' ', false, Json::error_handler_t::replace);
    response.fields = ignored_fields(made.ignored);
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
