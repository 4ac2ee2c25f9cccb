#include "server/cli/common/text_file.h"

#include <catch2/catch.hpp>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::text_file_test {
namespace {

TEST_CASE("a text is read whole; one that is missing, empty or too long is named with its flag") {
  const TempDirectory temp;
  const auto refusal = [&](const std::string& name, uint64_t bytes_max) {
    return std::string(read_text_file("--text", temp / name, bytes_max).status().message());
  };
  write_file(temp / "some", std::string_view("a\nb\n"));
  CHECK(read_text_file("--text", temp / "some", 4).value() == "a\nb\n");
  CHECK(refusal("some", 3).find("--text " + (temp / "some") + " has ") != std::string::npos);
  CHECK(refusal("none", 3).find("cannot open --text " + (temp / "none")) != std::string::npos);
  write_file(temp / "empty", std::string_view());
  CHECK(refusal("empty", 3).find("is empty") != std::string::npos);
}

}  // namespace
}  // namespace spillway::text_file_test
