#include "server/http/error.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/units.h"
#include "server/log.h"

namespace spillway {
namespace {

ApiError bad_request(std::string message, std::string_view param, std::string_view code) {
  ApiError error;
  error.message = std::move(message);
  error.param = param;
  error.code = code;
  return error;
}

ApiError unavailable(std::string message, std::string_view code) {
  ApiError error;
  error.status = 503;
  error.message = std::move(message);
  error.type = "unavailable_error";
  error.code = code;
  return error;
}

}  // namespace

std::string ApiError::json() const {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json inner = {{"message", message.substr(0, kErrorMessageBytesMax)},
                                  {"type", type},
                                  {"param", or_null(param)},
                                  {"code", or_null(code)}};
  for (const auto& [name, number] : numbers) inner[name] = number;
  const nlohmann::ordered_json outer = {{"error", std::move(inner)}};
  // Cutting a message may halve a character; replace instead of throwing.
  return outer.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ApiError invalid_json(size_t byte_offset, std::string_view what) {
  return bad_request("The body is not valid JSON at byte " + std::to_string(byte_offset) + ": " +
                         std::string(what) + ".",
                     "", "invalid_json");
}

ApiError invalid_type(std::string_view param, std::string_view wanted) {
  return bad_request("'" + std::string(param) + "' must be " + std::string(wanted) + ".", param,
                     "invalid_type");
}

ApiError missing_parameter(std::string_view param) {
  return bad_request("You must provide the parameter '" + std::string(param) + "'.", param,
                     "missing_required_parameter");
}

ApiError invalid_value(std::string_view param, std::string_view why) {
  return bad_request("'" + std::string(param) + "' " + std::string(why) + ".", param,
                     "invalid_value");
}

ApiError unknown_parameter(std::string_view param) {
  const std::string name = param.empty()
                               ? "A name in the body (with other characters than letters, "
                                 "digits, '_', '-' and '.')"
                               : "'" + std::string(param) + "'";
  return bad_request(name + " is not a parameter of this endpoint.", param, "unknown_parameter");
}

ApiError unsupported_parameter(std::string_view param, std::string_view why) {
  return bad_request("'" + std::string(param) + "' is not supported: " + std::string(why) + ".",
                     param, "unsupported_parameter");
}

ApiError model_not_found(const std::vector<std::string>& served_names) {
  std::string message = "The model does not exist. Served here: ";
  for (size_t i = 0; i < served_names.size(); ++i) {
    if (i > 0) message += ", ";
    message += "`" + served_names[i] + "`";
  }
  ApiError error = bad_request(message + ".", "model", "model_not_found");
  error.status = 404;
  return error;
}

// The wording is OpenAI's: clients match it with regular expressions to shrink their prompt.
ApiError context_length_exceeded(int64_t positions, int64_t prompt_tokens, int64_t new_tokens) {
  ApiError error = bad_request(
      "This model's maximum context length is " + std::to_string(positions) +
          " tokens. However, you requested " + std::to_string(prompt_tokens + new_tokens) +
          " tokens (" + std::to_string(prompt_tokens) + " in the prompt, " +
          std::to_string(new_tokens) +
          " in the completion). Please reduce the length of the prompt or completion.",
      "prompt", "context_length_exceeded");
  error.numbers = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", positions}};
  return error;
}

ApiError priority_not_allowed(int64_t least, int64_t most) {
  std::string message =
      "A 'priority' below 0 goes before the requests of others, which is not allowed here. Leave "
      "it "
      "out, or send 0 or more, which lets others go first; the server's --priority on, or a range "
      "in "
      "the key's line, allows it.";
  if (least != 0 || most < INT32_MAX) {
    message = "This API key may send a 'priority' of " + std::to_string(least) + " to " +
              std::to_string(most) + ". Leave it out, or send one of these.";
  }
  ApiError error = bad_request(std::move(message), "priority", "priority_not_allowed");
  error.status = 403;
  error.type = "permission_error";
  return error;
}

ApiError queue_full(int retry_after_seconds) {
  ApiError error = bad_request(
      "The queue is full. Try again later, or send fewer requests at once.", "", "queue_full");
  error.status = 429;
  error.type = "rate_limit_error";
  // openai-node ignores 60 and more.
  error.retry_after_seconds = std::clamp(retry_after_seconds, 1, 60);
  return error;
}

ApiError key_limit_exceeded(std::string_view key_name, std::string_view limit, int64_t most,
                            std::string_view what, int retry_after_seconds) {
  ApiError error =
      bad_request("The API key" + (key_name.empty() ? "" : " " + std::string(key_name)) + " may " +
                      std::string(what) + " (its limit: " + std::string(limit) + "=" +
                      std::to_string(most) + ").",
                  "", "key_limit_exceeded");
  error.numbers = {{"max_allowed", most}};
  if (retry_after_seconds == 0) return error;
  error.status = 429;
  error.type = "rate_limit_error";
  error.retry_after_seconds = std::clamp(retry_after_seconds, 1, 60);
  return error;
}

ApiError shutting_down() {
  ApiError error = unavailable("The server is shutting down.", "shutting_down");
  error.retry_after_seconds = 10;
  return error;
}

ApiError model_loading(double seconds) {
  ApiError error = unavailable(
      "The model is being loaded, for " + format_seconds(seconds) + " so far. Try again later.",
      "model_loading");
  error.retry_after_seconds = 5;
  return error;
}

ApiError engine_error() {
  ApiError error = unavailable("The engine failed while it ran this request.", "engine_error");
  error.status = 500;
  error.type = "server_error";
  return error;
}

ApiError engine_failed() {
  ApiError error = unavailable("The engine has failed and needs a restart.", "engine_error");
  error.retry_after_seconds = 10;
  return error;
}

ApiError request_timeout(double seconds, bool own) {
  char given[48];  // As the request has it: 0.0001 is not 0.00.
  std::snprintf(given, sizeof given, "%.15g s of its timeout.", seconds);
  ApiError error =
      unavailable("The request took longer than the " +
                      (own ? given : format_seconds(seconds) + " that this server allows.") +
                      " Use a smaller max_tokens, or a batch.",
                  "request_timeout");
  error.retry_is_useless = true;
  return error;
}

ApiError logged(ApiError error, std::string_view where) {
  if (error.log_detail.empty()) return error;
  log_error(std::string(where) + ": " + error.log_detail);
  error.message += " The server's log says why.";
  error.log_detail.clear();
  return error;
}

ApiError with_cause(ApiError error) {
  if (error.log_detail.empty()) return error;
  if (!error.message.empty() && error.message.back() == '.') error.message.pop_back();
  error.message += ": " + error.log_detail;
  error.log_detail.clear();
  return error;
}

ApiError refused_by_scheduler(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kInfeasible:
      return bad_request(std::string(status.message()), "", "invalid_value");
    case Code::kCapacity:
      return queue_full(1);
    case Code::kCancelled:
      return shutting_down();
    case Code::kDeviceLost: {
      ApiError error = engine_failed();
      error.log_detail = status.message();
      return error;
    }
    default: {
      ApiError error = engine_error();
      error.log_detail = status.message();
      return error;
    }
  }
}

}  // namespace spillway
