// The profiles in configs/hardware, all of them, and how they are found.
#include "offload/config_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "offload/io/file.h"
#include "policy/hardware_json.h"
#include "tests/support/hardware.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"

namespace spillway::config_files_test {
namespace {

std::set<std::string> names() {
  std::set<std::string> names;
  const std::string folder = test::source_directory() + "/configs/hardware";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CHECK(entry.path().extension() == ".json");
    const std::string name = entry.path().stem().string();
    if (name != kFlexgenHardwareName) names.insert(name);  // Of another kind; see below
  }
  return names;
}

void check_source(const Figure& figure) {
  CHECK(figure.source.size() > 5);
  CHECK(figure.samples == 0);
}

TEST_CASE("every profile in configs/hardware reads, and every figure says where it is from") {
  for (const std::string& name : names()) {
    INFO(name);
    const auto found = find_hardware_profile(name);
    INFO(found.status().message());
    REQUIRE(found.ok());
    const HardwareProfile& profile = found.value();
    CHECK(profile.measured_at.empty());
    CHECK_FALSE(profile.name.empty());
    const auto& compute = profile.compute;
    for (const Figure& figure :
         {compute.memory_bytes, compute.memory_free_bytes, compute.memory_read,
          compute.prompt_attention, compute.decode_attention, profile.host.memory_bytes,
          profile.host.memory_free_bytes, profile.host.memory_read, profile.host.decode_attention,
          profile.disk.free_bytes}) {
      check_source(figure);
    }
    // A tall product is never slower than a low one of the same shape and format.
    std::map<std::tuple<Format, int64_t, int64_t>, double> before;
    for (const MatrixFigure& matrix : compute.matrix) {
      INFO(format_name(matrix.format) << ", rows " << matrix.rows);
      check_source(matrix.rate);
      double& lower = before[{matrix.format, matrix.outputs, matrix.inputs}];
      CHECK(matrix.rate.value >= lower);
      lower = matrix.rate.value;
    }
    for (const DiskFigure& disk : profile.disk.read) check_source(disk.rate);
    for (const DiskFigure& disk : profile.disk.write) check_source(disk.rate);
    CHECK(profile.link.has_value() == (name.rfind("cpu", 0) != 0));
    if (profile.link) {
      // What makes offloading worth a plan: the link is slower than either memory.
      CHECK(profile.link->to_device.value < profile.host.memory_read.value);
      CHECK(profile.host.memory_read.value < compute.memory_read.value);
      CHECK(profile.link->both.value <= 2 * profile.link->to_device.value);
    }
  }
}

TEST_CASE("the profiles that come with the program") {
  CHECK(names() == std::set<std::string>{"a100-40gb", "a100-80gb", "cpu-2-core-24gb", "h200",
                                         "rtx-4090-24gb", "t4-16gb"});
  const auto t4 = find_hardware_profile("t4-16gb").value();
  CHECK(t4.host.memory_bytes.value == 208e9);
  CHECK(t4.link->to_device.value == 12e9);
  for (const DiskFigure& figure : t4.disk.read) CHECK(figure.rate.value <= 2e9);
}

TEST_CASE("a hardware profile is found by name or by path") {
  const TempDirectory temp;
  const std::string path = temp / "mine.json";
  REQUIRE(replace_file(path, hardware_profile_json(test::sample_hardware(true))).ok());
  CHECK(find_hardware_profile(path).value().name == test::sample_hardware(true).name);
  CHECK(find_hardware_profile(temp / "other.json").status().code() == Code::kNotFound);
  REQUIRE(replace_file(path, "{\"version\": 7}").ok());
  const Status old = find_hardware_profile(path).status();
  CHECK_THAT(std::string(old.message()),
             Catch::Contains("mine.json") && Catch::Contains("version 7"));
  for (const char* name : {"t5", "", "T4-16GB"}) {
    const Status status = find_hardware_profile(name).status();
    CHECK(status.code() == Code::kNotFound);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("hardware profile") && Catch::Contains("a100-40gb, a100-80gb"));
  }
}

TEST_CASE("FlexGen's constants are found by name and by file, and are no profile") {
  const auto found = find_flexgen_hardware();
  INFO(found.status().message());
  REQUIRE(found.ok());
  CHECK(found.value().host_memory == 200 * 0x1p30);
  const std::string path = test::source_directory() + "/configs/hardware/flexgen-t4.json";
  REQUIRE(find_flexgen_hardware(path).ok());
  CHECK(find_flexgen_hardware(path).value().name == found.value().name);
  CHECK(find_flexgen_hardware("flexgen-t5").status().code() == Code::kNotFound);
  CHECK(find_flexgen_hardware("t4-16gb").status().code() == Code::kInvalidArgument);
  CHECK(find_hardware_profile(kFlexgenHardwareName).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::config_files_test
