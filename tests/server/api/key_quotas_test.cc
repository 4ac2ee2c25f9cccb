// What one API key may have: sequences at once, and tokens a minute.
#include "server/api/key_quotas.h"

#include <catch2/catch.hpp>

namespace spillway::key_quotas_test {
namespace {

using Lease = std::shared_ptr<KeyQuotas::Lease>;

KeyLimits limits_of(int64_t slots, int64_t tokens_per_minute) {
  KeyLimits limits;
  limits.name = "team";
  limits.slots = slots;
  limits.tokens_per_minute = tokens_per_minute;
  return limits;
}

ApiError error_of(ApiResult<Lease> result) {
  REQUIRE(std::holds_alternative<ApiError>(result));
  return std::get<ApiError>(result);
}

Lease lease_of(ApiResult<Lease> result) {
  if (const auto* error = std::get_if<ApiError>(&result)) FAIL(error->message);
  return std::get<Lease>(result);
}

TEST_CASE("a key has so many sequences at once, and is told when it has more") {
  KeyQuotas quotas({limits_of(4, 0)});
  Lease first = lease_of(quotas.take(1, 3, 1'000'000, 10));
  CHECK_FALSE(quotas.refuse(1, 10));
  const ApiError error = error_of(quotas.take(1, 2, 1, 40));
  CHECK(error.status == 429);
  CHECK(error.code == "key_limit_exceeded");
  CHECK(
      error.message ==
      "The API key team may have 4 sequences waiting and running at once: 3 are, and this request "
      "asks for 2 (its limit: slots=4).");
  CHECK(error.retry_after_seconds == 30);  // What it has waited for the first one so far
  const Lease last = lease_of(quotas.take(1, 1, 1, 40));
  CHECK(quotas.refuse(1, 40));
  first->end(5, 50);
  CHECK_FALSE(quotas.refuse(1, 50));
  first.reset();  // Was given back already
  const Lease more = lease_of(quotas.take(1, 3, 1, 50));
  CHECK(quotas.refuse(1, 50));
  const ApiError never = error_of(quotas.take(1, 5, 1, 50));
  CHECK(never.status == 400);
  CHECK(never.retry_after_seconds == 0);
  CHECK(never.message.find("slots=4") != std::string::npos);
}

TEST_CASE("tokens of a minute come back with time, and those that were not used at once") {
  KeyQuotas quotas({limits_of(0, 600)});
  const Lease first = lease_of(quotas.take(1, 100, 500, 1000));
  const ApiError error = error_of(quotas.take(1, 1, 150, 1000));
  CHECK(error.status == 429);
  CHECK(error.retry_after_seconds == 5);  // 50 tokens more, 10 a second
  CHECK(error.message.find("tokens-per-minute=600") != std::string::npos);
  CHECK(lease_of(quotas.take(1, 1, 150, 1005)));
  // That one did not run: its tokens are there again.
  first->end(200, 1005);  // 300 of 500 were not used.
  CHECK(error_of(quotas.take(1, 1, 451, 1005)).status == 429);
  lease_of(quotas.take(1, 1, 450, 1005))->end(450, 1005);
  CHECK(quotas.refuse(1, 1005));
  CHECK(error_of(quotas.take(1, 1, 601, 9000)).status == 400);
  CHECK(lease_of(quotas.take(1, 1, 600, 9000)));
}

TEST_CASE("whoever has no limits gets no lease and is never refused") {
  KeyQuotas quotas({KeyLimits(), limits_of(1, 0)});
  for (const uint64_t key : {0, 1, 3}) {
    CHECK(lease_of(quotas.take(key, 1'000'000, 1'000'000'000)) == nullptr);
    CHECK_FALSE(quotas.refuse(key));
  }
  CHECK(lease_of(KeyQuotas().take(1, 5, 5)) == nullptr);
  const Lease other = lease_of(quotas.take(2, 1, 1));
  CHECK(quotas.refuse(2));
  CHECK_FALSE(quotas.refuse(1));
}

}  // namespace
}  // namespace spillway::key_quotas_test
