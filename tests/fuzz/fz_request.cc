// parse_completion on any bytes: what is accepted keeps every bound that the scheduler relies on,
// and is read the same a second time; what is refused has a small, valid error.
#include <cstdint>
#include <string_view>

#include "kernels/base/check.h"
#include "server/api/completion.h"
#include "tests/fuzz/call_checks.h"
#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

ApiContext make_context(const ModelShape& shape) {
  ApiContext context;
  context.shape = &shape;
  context.model_names = {"m"};
  context.limits.sequences_max = 16;
  context.limits.json_values_max = 10'000;
  return context;
}

}  // namespace
}  // namespace spillway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const ModelShape shape = test::make_shape({.vocabulary = 50'272, .positions = 2048});
  const ApiContext context = make_context(shape);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse_completion(body, context);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    test::check_error(*error);
    return 0;
  }
  test::check_bounds(std::get<CompletionCall>(parsed), context);
  const auto again = parse_completion(body, context);
  SPILLWAY_CHECK(std::holds_alternative<CompletionCall>(again));
  test::check_same(std::get<CompletionCall>(parsed), std::get<CompletionCall>(again));
  return 0;
}
