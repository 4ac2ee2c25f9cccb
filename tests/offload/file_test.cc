// Files that are replaced whole.
#include "offload/file.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/temp_directory.h"

namespace spillway {
namespace {

TEST_CASE("a file is replaced whole, or stays as it was") {
  const TempDirectory temp;
  const std::string path = temp / "a.json";
  REQUIRE(replace_file(path, "first").ok());
  CHECK(read_small_file(path, 100).value() == "first");
  REQUIRE(replace_file(path, "2").ok());
  CHECK(read_small_file(path, 100).value() == "2");

  const Status nowhere = replace_file(temp / "none/a.json", "x");
  CHECK(nowhere.code() == Code::kNotFound);
  CHECK_THAT(std::string(nowhere.message()), Catch::Contains("none/a.json"));
  std::filesystem::create_directory(temp / "folder");
  std::filesystem::create_directory(temp / "folder/inside");
  CHECK_FALSE(replace_file(temp / "folder", "x").ok());
  // No temporary is left.
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(temp.path())) {
    ++entries;
  }
  CHECK(entries == 2);
}

}  // namespace
}  // namespace spillway
