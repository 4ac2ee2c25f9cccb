// An error answer: HTTP status and the OpenAI error object. Plain values, any thread.
//
// Invariant: a message never repeats the caller's text, holds no path and no address, and stays
// under kErrorMessageBytesMax, so an error is never larger than a few KB for any request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

constexpr size_t kErrorMessageBytesMax = 2048;

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // Empty: null in JSON. A path such as "prompt[3]".
  std::string code;   // Empty: null in JSON.
  std::vector<std::pair<std::string, int64_t>> numbers;  // Machine-readable extras inside "error".
  int retry_after_seconds = 0;                           // 0: no Retry-After header.
  std::string log_detail;         // The cause: for logged() and with_cause(), never sent unchanged
  bool retry_is_useless = false;  // Sent as `x-should-retry: false` on 5xx and 429.

  // {"error":{"message","type","param","code", numbers...}}; always valid JSON.
  std::string json() const;
};

// A value or the error to answer with.
template <class T>
using ApiResult = std::variant<T, ApiError>;

ApiError invalid_json(size_t byte_offset, std::string_view what);
ApiError invalid_type(std::string_view param, std::string_view wanted);
ApiError missing_parameter(std::string_view param);
ApiError invalid_value(std::string_view param, std::string_view why);
ApiError unknown_parameter(std::string_view param);  // Empty: the name is not safe to repeat
ApiError unsupported_parameter(std::string_view param, std::string_view why);
ApiError model_not_found(const std::vector<std::string>& served_names);
ApiError context_length_exceeded(int64_t positions, int64_t prompt_tokens, int64_t new_tokens);
ApiError priority_not_allowed(int64_t least, int64_t most);  // The range that is
ApiError queue_full(int retry_after_seconds);
// A request that has more than its API key may: `limit` is its name in the key file, `most` its
// value. "The API key NAME may WHAT (its limit: LIMIT=MOST)." 429; or 400 if it never may, with 0
// seconds.
ApiError key_limit_exceeded(std::string_view key_name, std::string_view limit, int64_t most,
                            std::string_view what, int retry_after_seconds);
ApiError shutting_down();
ApiError model_loading(double seconds);  // For so long already
ApiError engine_error();
ApiError engine_failed();  // Only a restart cures it.
// `own`: the time is the request's, not the server's.
ApiError request_timeout(double seconds, bool own);

// Writes the cause, if there is one, to the log, and mentions the log in the message: for HTTP
// clients, which must not learn the machine's files and addresses. `where` begins the line:
// "/v1/completions".
ApiError logged(ApiError error, std::string_view where);

// The error with its cause in the message: for users who run the program themselves.
ApiError with_cause(ApiError error);

// The error for a refusal of Scheduler::submit.
ApiError refused_by_scheduler(const Status& status);

}  // namespace spillway
