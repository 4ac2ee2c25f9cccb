// parse_chat on any bytes, with a tokenizer of one token a byte and the plain template: as
// fz_request does for completions.
#include <cstdint>
#include <string_view>

#include "kernels/base/check.h"
#include "server/api/chat_parse.h"
#include "server/chat/chat_template.h"
#include "tests/fuzz/call_checks.h"
#include "tests/server/tokenizer/small_tokenizer.h"
#include "tests/support/tiny_shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  static const Tokenizer tokenizer = load_small({});
  static const ChatTemplate chat = ChatTemplate::load({});
  const ModelShape shape = test::make_shape({.vocabulary = 257, .positions = 2048});
  ApiContext context;
  context.shape = &shape;
  context.tokenizer = &tokenizer;
  context.chat = &chat;
  context.model_names = {"m"};
  context.limits.sequences_max = 16;
  context.limits.json_values_max = 10'000;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse_chat(body, context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    test::check_error(*error);
    return 0;
  }
  const auto& call = std::get<CompletionCall>(parsed);
  SPILLWAY_CHECK(call.chat);
  test::check_bounds(call, context);
  const auto again = parse_chat(body, context);
  SPILLWAY_CHECK(std::holds_alternative<CompletionCall>(again));
  test::check_same(call, std::get<CompletionCall>(again));
  return 0;
}
