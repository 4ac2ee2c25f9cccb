// Checkpoints that transformers itself saved (tests/golden): both formats, sharded and whole, must
// be read, and where both are there give the same packed weights.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "offload/convert/converter.h"
#include "offload/model_file/model_file.h"
#include "tests/support/places.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"

namespace spillway::golden_checkpoints_test {
namespace {

namespace fs = std::filesystem;

// All slabs of a freshly converted directory, back to back.
std::vector<std::byte> packed_weights(const std::string& directory) {
  const TempDirectory temp;
  const auto report = convert_checkpoint(directory, temp / "out.spill", {});
  INFO(directory << ": " << report.status().message());
  REQUIRE(report.ok());
  CHECK(report->damage.empty());
  const ModelFile file = ModelFile::open(temp / "out.spill").value();
  std::vector<std::byte> all(file.table().weight_bytes());
  size_t at = 0;
  for (uint32_t i = 0; i < file.table().slabs.size(); ++i) {
    const auto target = std::span(all).subspan(at, file.table().slabs[i].bytes);
    REQUIRE(file.read_slab(i, target).ok());
    at += target.size();
  }
  return all;
}

TEST_CASE("checkpoints saved by transformers are read, alike in both formats") {
  const fs::path golden = fs::path(test::source_directory()) / "tests/golden/checkpoints";
  if (!fs::exists(golden)) {
    return test::skip("no golden checkpoints at " + golden.string());
  }
  int models = 0;
  for (const auto& variant : fs::directory_iterator(golden)) {
    std::vector<std::vector<std::byte>> packed;
    for (const char* format : {"safetensors", "bin"}) {
      if (fs::exists(variant.path() / format / "config.json")) {
        packed.push_back(packed_weights(variant.path() / format));
      }
    }
    INFO(variant.path());
    REQUIRE_FALSE(packed.empty());
    for (const auto& other : packed) CHECK(other == packed.front());
    ++models;
  }
  CHECK(models >= 5);
}

}  // namespace
}  // namespace spillway::golden_checkpoints_test
