#include "server/api/cache_salt.h"

#include <catch2/catch.hpp>
#include <set>

namespace spillway::cache_salt_test {
namespace {

TEST_CASE("texts and keys have salts of their own, and no key changes nothing") {
  std::set<uint64_t> salts;
  for (const char* text : {"a", "b", ""}) {
    for (const uint64_t key : {0, 1, 2}) salts.insert(salt_of_key(salt_of_text(text), key));
  }
  for (const uint64_t key : {0, 1, 2}) salts.insert(salt_of_key(0, key));
  CHECK(salts.size() == 12);
  CHECK(salt_of_key(0, 0) == 0);
  CHECK(salt_of_key(7, 3) == salt_of_key(7, 3));
}

}  // namespace
}  // namespace spillway::cache_salt_test
