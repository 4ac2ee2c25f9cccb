#include "scheduler/check_request.h"

#include <string>

namespace spillway {

namespace {

std::string number(int64_t value) {
  return std::to_string(value);
}

}  // namespace

Status check_request(const Request& request, const ModelShape& model) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return invalid_argument("the prompt is empty; give at least one token");
  if (request.max_tokens < 0 || request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return invalid_argument("min_tokens (" + number(request.min_tokens) +
                            ") must lie between 0 and max_tokens (" + number(request.max_tokens) +
                            ")");
  }
  if (prompt + request.max_tokens > model.positions) {
    return invalid_argument("the model has " + number(model.positions) + " positions; prompt (" +
                            number(prompt) + ") and max_tokens (" + number(request.max_tokens) +
                            ") need " + number(prompt + request.max_tokens) +
                            "; shorten the prompt or lower max_tokens");
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= model.vocabulary) {
      return invalid_argument("prompt token " + number(token) + " is outside the vocabulary of " +
                              number(model.vocabulary));
    }
  }
  return {};
}

}  // namespace spillway
