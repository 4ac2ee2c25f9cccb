// Files that are replaced whole.
#include "offload/io/file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"

namespace spillway::file_test {
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

TEST_CASE("a symbolic link stays and its target is replaced") {
  const TempDirectory temp;
  std::filesystem::create_directory(temp / "far");
  write_file(temp / "far/target", "before");
  std::filesystem::create_symlink("far/target", temp / "near");
  std::filesystem::create_symlink(temp / "near", temp / "link");
  std::filesystem::create_symlink("far/new", temp / "dangling");
  REQUIRE(replace_file(temp / "link", "after").ok());
  REQUIRE(replace_file(temp / "dangling", "made").ok());
  for (const char* link : {"near", "link", "dangling"}) {
    CHECK(std::filesystem::is_symlink(temp / link));
  }
  CHECK(read_small_file(temp / "far/target", 100).value() == "after");
  CHECK(read_small_file(temp / "far/new", 100).value() == "made");
  std::filesystem::create_symlink("round", temp / "round");
  CHECK_FALSE(replace_file(temp / "round", "x").ok());
  CHECK(std::filesystem::is_symlink(temp / "round"));
}

TEST_CASE("devices and FIFOs are written to and stay what they are") {
  const TempDirectory temp;
  // By way of a link, so that a fault replaces nothing that others need.
  std::filesystem::create_symlink("/dev/null", temp / "null");
  REQUIRE(replace_file(temp / "null", "x").ok());
  CHECK(std::filesystem::is_symlink(temp / "null"));
  CHECK(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_symlink("/dev/full", temp / "full");
  const Status full = replace_file(temp / "full", "x");
  CHECK(full.code() == Code::kIoError);
  CHECK(std::filesystem::is_symlink(temp / "full"));
  const std::string fifo = temp / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  std::string read;
  {
    const std::jthread reader([&] {
      std::ifstream in(fifo);
      read.assign(std::istreambuf_iterator<char>(in), {});
    });
    CHECK(replace_file(fifo, "through").ok());
  }
  CHECK(std::filesystem::is_fifo(fifo));
  CHECK(read == "through");
}

TEST_CASE("what is no regular file is not read") {
  const TempDirectory temp;
  const std::string fifo = temp / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Status refused = read_small_file(fifo, 100).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("fifo is a FIFO"));
  CHECK(read_small_file("/dev/zero", 100).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::file_test
