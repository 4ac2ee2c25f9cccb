// The real `spillway profile` in a hurry: the JSON it prints, writes and keeps is one profile.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "offload/io/file.h"
#include "policy/hardware_json.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"

namespace spillway::endtoend_profile_test {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  return read_small_file(path, kHardwareBytesMax).value();
}

// The files in the cache that are profiles.
std::vector<std::string> kept_in(const std::string& cache) {
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().filename().string().rfind("hardware-", 0) == 0) {
      kept.push_back(entry.path().string());
    }
  }
  return kept;
}

TEST_CASE("profile measures what the cost model needs", "[slow]") {
  const test::TemporaryCache place;
  const std::string printed = place.path() + "/printed", written = place.path() + "/out.json";
  const std::string command = test::program() +
                              " profile --device cpu --seconds 1 --json --output " + written +
                              " > " + printed + " 2> " + place.path() + "/log";
  REQUIRE(std::system(command.c_str()) == 0);
  const auto profile = parse_hardware_profile(read(printed), "stdout");
  INFO(profile.status().message());
  REQUIRE(profile.ok());
  CHECK(read(written) == read(printed));
  const auto kept = kept_in(place.path());
  REQUIRE(kept.size() == 1);
  CHECK(read(kept.front()) == read(printed));

  const HardwareProfile::Compute& compute = profile->compute;
  CHECK(compute.kind == "cpu");
  CHECK_FALSE(profile->link.has_value());
  CHECK(profile->measured_at.size() == 20);
  CHECK_FALSE(profile->name.empty());
  // Four formats, six heights; a machine with little memory leaves large shapes out.
  REQUIRE(compute.matrix.size() >= 4 * 6);
  CHECK(compute.matrix.front().rows == 1);
  CHECK(compute.matrix.back().rows == 512);
  for (const MatrixFigure& figure : compute.matrix) {
    CHECK(figure.rate.samples >= 1);
    CHECK(figure.rate.source.empty());
  }
  for (const Figure* figure :
       {&compute.decode_attention, &compute.decode_attention_q4, &compute.decode_attention_q8,
        &compute.decode_attention_shared, &compute.decode_attention_q4_shared,
        &compute.decode_attention_q8_shared}) {
    CHECK(figure->samples >= 1);
  }
  CHECK(profile->host.memory_read.value == compute.memory_read.value);
  CHECK(profile->host.decode_attention.value == compute.decode_attention.value);
  CHECK(profile->disk.read.size() == 12);
  CHECK(profile->disk.write.size() == 12);
  CHECK(profile->disk.processor.samples >= 3);
  // At most 1 % or 99 % of the processor is said to be lost.
  CHECK(profile->disk.processor.low > 1e6);
}

TEST_CASE("an interrupted profile leaves no file and exits with 130") {
  const test::TemporaryCache place;
  const std::string written = place.path() + "/out.json";
  const std::string command = "timeout --preserve-status -s INT 2 " + test::program() +
                              " profile --device cpu --seconds 600 --output " + written + " > " +
                              place.path() + "/printed 2> " + place.path() + "/log";
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  CHECK_FALSE(fs::exists(written));
  CHECK(kept_in(place.path()).empty());
  CHECK(fs::file_size(place.path() + "/printed") == 0);
}

}  // namespace
}  // namespace spillway::endtoend_profile_test
