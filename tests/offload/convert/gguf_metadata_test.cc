// Typed access to metadata: the first failure is kept and names file, key and byte.
#include "offload/convert/gguf_metadata.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace spillway::gguf_metadata_test {
namespace {

GgufMetadata some() {
  GgufMetadata keys;
  keys["count"] = {int64_t{7}, 100, false};
  keys["same"] = {std::vector<int64_t>{5, 5, 5}, 200, false};
  keys["differ"] = {std::vector<int64_t>{5, 6}, 300, false};
  keys["eps"] = {static_cast<double>(1e-5F), 400, true};
  keys["name"] = {std::string("x"), 500, false};
  keys["names"] = {std::vector<std::string>{"x", "y"}, 600, false};
  keys["nan"] = {std::numeric_limits<double>::quiet_NaN(), 700, true};
  keys["flag"] = {true, 800, false};
  return keys;
}

TEST_CASE("values are read by type") {
  const GgufMetadata keys = some();
  GgufKeyReader reader(keys, "f.gguf");
  CHECK(reader.integer("count", 1, 7) == 7);
  CHECK(reader.find_integer("same", 0, 9) == 5);
  CHECK(reader.number("eps", 0, 1) == 1e-5);
  CHECK(reader.number("count", 0, 10) == 7);
  CHECK(reader.string("name") == "x");
  CHECK(reader.find_boolean("flag") == true);
  CHECK(reader.find_strings("names")->size() == 2);
  CHECK(reader.find_integer("none", 0, 1) == std::nullopt);
  CHECK(reader.find_strings("none") == nullptr);
  CHECK(reader.status().ok());
}

TEST_CASE("a failure names file, key, byte and what is there") {
  const GgufMetadata keys = some();
  const auto failure = [&](const auto& read) {
    GgufKeyReader reader(keys, "f.gguf");
    read(reader);
    reader.string("none either");  // The first failure is kept.
    return std::string(reader.status().message());
  };
  CHECK(failure([](auto& reader) { reader.integer("name", 0, 1); }) ==
        "f.gguf: key 'name' at byte 500 must be an integer, it is a string");
  CHECK(failure([](auto& reader) { reader.find_boolean("names"); }) ==
        "f.gguf: key 'names' at byte 600 must be true or false, it is a list of 2 strings");
  CHECK(failure([](auto& reader) { reader.integer("count", 8, 9); }) ==
        "f.gguf: key 'count' at byte 100 must be between 8 and 9, it is 7");
  CHECK(failure([](auto& reader) { reader.integer("missing", 8, 9); }) ==
        "f.gguf: key 'missing' is missing");
  CHECK_THAT(failure([](auto& reader) { reader.integer("differ", 0, 9); }),
             Catch::Contains("differs by layer"));
  CHECK_THAT(failure([](auto& reader) { reader.number("nan", 0, 9); }),
             Catch::Contains("between 0 and 9, it is nan"));
  CHECK_THAT(failure([](auto& reader) { reader.number("name", 0, 9); }),
             Catch::Contains("must be a number"));
}

TEST_CASE("a float32 is the decimal that was meant") {
  CHECK(shortest_decimal(static_cast<double>(1e-6F)) == 1e-6);
  CHECK(shortest_decimal(0.5) == 0.5);
  CHECK(std::isinf(shortest_decimal(std::numeric_limits<double>::infinity())));
}

}  // namespace
}  // namespace spillway::gguf_metadata_test
