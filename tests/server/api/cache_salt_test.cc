#include "server/api/cache_salt.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

namespace spillway::cache_salt_test {
namespace {

TEST_CASE("texts have salts of their own, the same each time") {
  std::set<uint64_t> salts;
  for (int i = 0; i < 1000; ++i) salts.insert(salt_of_text("user " + std::to_string(i)));
  CHECK(salts.size() == 1000);
  CHECK(salt_of_text("user 7") == salt_of_text("user 7"));
  CHECK_FALSE(salts.contains(0));
}

}  // namespace
}  // namespace spillway::cache_salt_test
