// Where a profile is kept, how it is shown, and how its measurements end early.
#include <catch2/catch.hpp>
#include <filesystem>

#include "offload/io/file.h"
#include "policy/hardware_json.h"
#include "scheduler/planning/hardware_cache.h"
#include "server/cli/profile/profile.h"
#include "server/cli/profile/profile_measure.h"
#include "tests/support/golden.h"
#include "tests/support/hardware.h"
#include "tests/support/temp_directory.h"

namespace spillway::cli_profile_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a kept profile is found again, on the same device and disk only") {
  const test::TemporaryCache cache;
  const auto device = open_cpu_device(2).value();
  const auto other = open_cpu_device(1).value();
  const std::vector<std::string> disk = {cache.path() + "/scratch/not/there/yet"};
  const auto none = cached_profile(*device, disk);
  REQUIRE(none.ok());
  CHECK_FALSE(none.value().has_value());

  const std::string json = hardware_profile_json(test::sample_hardware(false));
  const std::string path = keep_profile(*device, disk, json).value();
  CHECK(fs::path(path).parent_path() == cache.path());
  CHECK(path == profile_path(*device, disk).value());
  const auto found = cached_profile(*device, disk);
  REQUIRE((found.ok() && found.value().has_value()));
  CHECK(hardware_profile_json(*found.value()) == json);

  CHECK_FALSE(cached_profile(*other, disk).value().has_value());
  CHECK(profile_path(*other, disk).value() != path);
  CHECK(profile_path(*device, {"/proc"}).value() != path);
  CHECK(profile_path(*device, {}).value() != path);
  // Folders of one disk have its profile, those of several one of their own, in any order.
  CHECK(profile_path(*device, {disk[0], cache.path()}).value() == path);
  const std::string two = profile_path(*device, {disk[0], "/proc"}).value();
  CHECK(two != path);
  CHECK(two != profile_path(*device, {"/proc"}).value());
  CHECK(two == profile_path(*device, {"/proc", disk[0]}).value());
  if (const auto int8 = open_cpu_device(2, CpuMatmul::kInt8); int8.ok()) {
    CHECK(profile_path(*int8.value(), disk).value() != path);
  }
  // Nothing that a shell or another file system could mind.
  CHECK(fs::path(path).filename().string().find_first_not_of(
            "abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos);
}

TEST_CASE("a kept profile that cannot be read is an error with its path") {
  const test::TemporaryCache cache;
  const auto device = open_cpu_device(1).value();
  const std::string path = keep_profile(*device, {}, "{\"version\": 9}").value();
  const Status status = cached_profile(*device, {}).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains(path) && Catch::Contains("version 9") &&
                                                Catch::Contains("'spillway profile'"));
}

TEST_CASE("the table of a profile shows every figure with its spread or its source") {
  const std::string table = profile_table(test::sample_hardware(true));
  INFO(table);
  CHECK_THAT(table, Catch::Contains("f16    16 x [4096, 4096]"));
  CHECK_THAT(table, Catch::Contains("1600.00"));  // GFLOP/s
  CHECK_THAT(table, Catch::Contains("1440.00"));  // The lowest
  CHECK_THAT(table, Catch::Contains("a datasheet"));
  CHECK_THAT(table, Catch::Contains("host to device"));
  CHECK_THAT(table, Catch::Contains("device to host, 1.00 MiB each"));
  CHECK_THAT(table, Catch::Matches("(.|\n)*an op +5\\.00 +3\\.50 +5\\.56 +5\n(.|\n)*"));
  CHECK_THAT(table, Catch::Contains("to the host and back"));
  CHECK_THAT(table, Catch::Contains("1.00 MiB x 8"));
  const std::string of_cpu = profile_table(test::sample_hardware(false));
  CHECK_THAT(of_cpu, !Catch::Contains("host to device"));
  CHECK_THAT(of_cpu, Catch::Contains("that would take all of the CPU"));
}

TEST_CASE("the table of a profile shows which share of the hardware's best kernels reach") {
  HardwareProfile profile = test::sample_hardware(false);
  CHECK_THAT(profile_table(profile), !Catch::Contains("peaks"));
  profile.compute.peaks = {{"f32", "FMA", figure_of({1e11, 2e11})},
                           {"bf16", "DPBF16", figure_of({4e11})},
                           {"int8", "DPBUSD", figure_of({8e11})}};
  profile.compute.matrix = {{Format::kBF16, 512, 64, 32, figure_of({1e11, 3e11})},
                            {Format::kQ4, 512, 64, 32, figure_of({2e11})},
                            {Format::kF16, 512, 64, 32, figure_of({1.9e11})}};
  profile.compute.prompt_attention = figure_of({1e11});
  profile.compute.memory_read = figure_of({3e10, 4e10});
  profile.compute.decode_attention = figure_of({2e10, 3.2e10});
  const std::string table = profile_table(profile);
  INFO(table);
  CHECK_THAT(table, Catch::Contains("peaks of instructions, GFLOP/s"));
  CHECK_THAT(table, Catch::Contains("DPBUSD"));
  CHECK_THAT(table, Catch::Contains("0.75 of bf16"));  // The best over the best
  CHECK_THAT(table, Catch::Contains("0.25 of int8"));  // 4-bit weights allow 8-bit products
  CHECK_THAT(table, Catch::Contains("0.95 of f32"));   // f16 does not fit bf16
  CHECK_THAT(table, Catch::Contains("0.25 of bf16"));  // Prompt attention
  CHECK_THAT(table, Catch::Contains("0.80 of memory"));
  CHECK_THAT(table, Catch::Contains("... of 4 query heads a KV head"));
}

ProfileOptions options_of(std::vector<std::string> disk_dirs, int* questions, int stop_at) {
  ProfileOptions options;
  options.seconds = 0.5;
  options.disk_dirs = std::move(disk_dirs);
  options.keep_going = [=] { return ++*questions != stop_at; };
  options.say = [](const std::string&) {};
  return options;
}

TEST_CASE("the disk's profile has every size and depth, and leaves nothing behind", "[slow]") {
  const TempDirectory temp;
  const auto device = open_cpu_device(1).value();
  int questions = 0;
  HardwareProfile profile;
  const Status status =
      measure_disk(*device, options_of({temp / "scratch"}, &questions, -1), &profile);
  INFO(status.message());
  REQUIRE(status.ok());
  for (const auto* figures : {&profile.disk.read, &profile.disk.write}) {
    REQUIRE(figures->size() == 12);
    CHECK(figures->front().block_bytes == size_t{256} << 10);
    CHECK(figures->front().depth == 1);
    CHECK(figures->back().block_bytes == size_t{8} << 20);
    CHECK(figures->back().depth == 32);
    for (const DiskFigure& figure : *figures) {
      CHECK(figure.rate.value > 0);
      CHECK(figure.rate.low <= figure.rate.value);
      CHECK(figure.rate.high >= figure.rate.value);
      CHECK(figure.rate.samples >= 1);
    }
  }
  CHECK(profile.disk.free_bytes.value > 0);
  CHECK(fs::is_empty(temp / "scratch"));
}

TEST_CASE("several disks are measured together, and each is said", "[slow]") {
  const TempDirectory temp;
  const auto device = open_cpu_device(1).value();
  int questions = 0;
  HardwareProfile profile;
  ProfileOptions options = options_of({temp / "a", temp / "b"}, &questions, -1);
  std::string said;
  options.say = [&](const std::string& line) { said += line + "\n"; };
  const Status status = measure_disk(*device, options, &profile);
  INFO(status.message());
  REQUIRE(status.ok());
  CHECK(profile.disk.read.size() == 12);
  CHECK(profile.disk.write.size() == 12);
  CHECK_THAT(said, Catch::Contains("the disks under " + temp / "a" + "," + temp / "b") &&
                       Catch::Contains(temp / "a" + " alone reads ") &&
                       Catch::Contains(temp / "b" + " alone reads "));
  CHECK(fs::is_empty(temp / "a"));
  CHECK(fs::is_empty(temp / "b"));
}

TEST_CASE("profile stops between measurements when it is told to", "[slow]") {
  const TempDirectory temp;
  const auto device = open_cpu_device(1).value();
  HardwareProfile profile;
  for (const int stop_at : {1, 2, 5}) {
    int questions = 0;
    const ProfileOptions options = options_of({temp / "scratch"}, &questions, stop_at);
    CHECK(measure_disk(*device, options, &profile).code() == Code::kCancelled);
    CHECK(questions == stop_at);
    questions = 0;
    CHECK(measure_processors(*device, options, &profile).code() == Code::kCancelled);
    CHECK(questions == stop_at);
  }
  CHECK(fs::is_empty(temp / "scratch"));
}

TEST_CASE("profile refuses a file that it could not write, before it measures") {
  const TempDirectory temp;
  ProfileFlags flags;
  flags.device = "cpu";
  flags.disk_dirs = {temp.path()};
  const auto never = []() -> bool {
    FAIL("it measures");
    return false;
  };
  flags.output = temp / "none/hardware.json";
  CHECK(run_profile(flags, never).code() == Code::kNotFound);
  flags.output = temp.path();
  CHECK(run_profile(flags, never).code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::cli_profile_test
