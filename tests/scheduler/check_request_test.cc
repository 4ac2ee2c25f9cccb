#include "scheduler/check_request.h"

#include <catch2/catch.hpp>
#include <functional>

#include "tests/support/tiny_shape.h"

namespace spillway::check_request_test {
namespace {

std::string error_of(const std::function<void(Request*)>& change) {
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 10;
  change(&request);
  const Status status = check_request(request, test::tiny_shape());  // 64 positions, 100 tokens
  if (!status.ok()) CHECK(status.code() == Code::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("a request that no model of this shape can run is refused with its numbers") {
  CHECK(error_of([](Request*) {}).empty());
  CHECK(error_of([](Request* r) { r->max_tokens = 61; }).empty());
  CHECK(error_of([](Request* r) { r->prompt.clear(); }).find("empty") != std::string::npos);
  CHECK(error_of([](Request* r) { r->max_tokens = 62; }).find("need 65") != std::string::npos);
  CHECK(error_of([](Request* r) { r->min_tokens = 11; }).find("11") != std::string::npos);
  CHECK(error_of([](Request* r) { r->max_tokens = -1; }).find("-1") != std::string::npos);
  CHECK(error_of([](Request* r) { r->prompt[1] = 100; }).find("100") != std::string::npos);
  CHECK(error_of([](Request* r) { r->prompt[1] = -7; }).find("-7") != std::string::npos);
}

}  // namespace
}  // namespace spillway::check_request_test
