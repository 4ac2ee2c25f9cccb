// Names that mean nothing: what is told of them, in which form, and which are refused.
#include "server/api/ignored_parameters.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace spillway::ignored_parameters_test {
namespace {

TEST_CASE("names that were not read are listed up to a limit, and the others counted") {
  nlohmann::json body = {{"read", 1}, {"foo", nullptr}, {"a b", 1}};
  FieldReader fields(body);
  fields.find("read");
  const IgnoredParameters some = read_ignored(fields, false);
  CHECK(some.names == std::vector<std::string>{"foo"});
  CHECK(some.more == 1);
  CHECK(ignored_fields(some) == HttpFields{{"x-ignored-parameters", "foo, +1"}});
  CHECK_FALSE(fields.failed());
  for (int i = 0; i < 40; ++i) body["n" + std::to_string(i)] = i;
  FieldReader many(body);
  const IgnoredParameters most = read_ignored(many, false);
  CHECK(most.names.size() == 32);
  CHECK(most.more == 11);
  CHECK(ignored_fields({}).empty());
  CHECK(ignored_fields({{}, 2}) == HttpFields{{"x-ignored-parameters", "+2"}});
}

TEST_CASE("a misspelt name of ours is refused always, any other when strict") {
  const nlohmann::json own = {{"kv_rules", "h2o"}};
  FieldReader lenient(own);
  read_ignored(lenient, false);
  REQUIRE(lenient.failed());
  CHECK(lenient.error().param == "kv_rules");
  const nlohmann::json null = {{"kv_transfer_params", nullptr}};  // As vLLM's routers send it
  FieldReader absent(null);
  CHECK(read_ignored(absent, false).names == std::vector<std::string>{"kv_transfer_params"});
  CHECK_FALSE(absent.failed());
  const nlohmann::json other = {{"foo", 1}};
  FieldReader strict(other);
  CHECK(read_ignored(strict, true).names.empty());
  REQUIRE(strict.failed());
  CHECK(strict.error().param == "foo");
}

}  // namespace
}  // namespace spillway::ignored_parameters_test
