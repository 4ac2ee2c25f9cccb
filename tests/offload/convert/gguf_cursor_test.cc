// Reading a header piece by piece, across the buffer's ends.
#include "offload/convert/gguf_cursor.h"

#include <catch2/catch.hpp>

#include "tests/support/gguf_writer.h"

namespace spillway::gguf_cursor_test {
namespace {

TEST_CASE("numbers and strings follow each other across the buffer's ends") {
  const std::string large(600'000, 'x');
  Bytes bytes;
  append_little(bytes, 7, 2);
  for (const std::string& text : {large, std::string("middle"), large}) {
    const Bytes string = gguf_string(text);
    bytes.insert(bytes.end(), string.begin(), string.end());
  }
  append_little(bytes, 9, 4);
  const auto source = memory_source("f", bytes);
  GgufCursor cursor(*source);
  CHECK(cursor.number<uint16_t>().value() == 7);
  CHECK(cursor.offset() == 2);
  CHECK(cursor.string(1'000'000).value() == large);
  CHECK(cursor.string(1'000'000).value() == "middle");
  CHECK(cursor.string(1'000'000).value() == large);
  CHECK(cursor.left() == 4);
  CHECK(cursor.number<uint32_t>().value() == 9);
  const auto beyond = cursor.number<uint8_t>();
  CHECK(beyond.status().code() == Code::kCorruption);
  CHECK_THAT(std::string(beyond.status().message()),
             Catch::Contains("1 bytes wanted at byte " + std::to_string(bytes.size())));
}

TEST_CASE("a string beyond its limit or the file is refused") {
  const auto source = memory_source("f", gguf_string("four"));
  CHECK(GgufCursor(*source).string(4).value() == "four");
  CHECK(GgufCursor(*source).string(3).status().code() == Code::kInvalidArgument);
  Bytes cut = gguf_string("four");
  cut.pop_back();
  const auto shorter = memory_source("f", cut);
  CHECK(GgufCursor(*shorter).string(4).status().code() == Code::kCorruption);
}

}  // namespace
}  // namespace spillway::gguf_cursor_test
