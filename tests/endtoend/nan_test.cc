// A checkpoint with NaN in it answers nothing: a request ends in an error that says so, whichever
// tensor holds it, in every format and on every device. What swallows NaN on the way (a maximum
// that prefers numbers, a product left out) would answer with the tokens of another model. Two
// programs run it: cuda_test on the emulated device, endtoend_test on the CPU and a real one.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/device.h"
#include "server/runtime.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden.h"
#include "tests/support/places.h"
#include "tests/support/temp_directory.h"
#include "tests/support/test_devices.h"

namespace spillway::nan_test {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kToken = 5;  // First of the prompt
constexpr const char* kWeights = "model.safetensors";

// A checkpoint whose float32 numbers can be set one by one.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& from) {
    std::ifstream in(from + "/" + kWeights, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    header_ = nlohmann::json::parse(bytes_.substr(8, header_bytes));
    data_ = 8 + header_bytes;
    fs::copy(from, directory_.path(), fs::copy_options::recursive);
  }

  const std::string& path() const { return directory_.path(); }

  std::vector<std::string> tensors() const {
    std::vector<std::string> names;
    for (const auto& [name, about] : header_.items()) {
      if (name != "__metadata__") names.push_back(name);
    }
    return names;
  }

  // The file with one number of `tensor` replaced, one that the prompt below has to do with.
  void damage(const std::string& tensor, float value) const {
    const auto& about = header_.at(tensor);
    REQUIRE(about.at("dtype") == "F32");
    const auto columns = about.at("shape").back().get<size_t>();
    size_t row = 0;
    if (tensor.find("embed_tokens") != std::string::npos) row = kToken;
    if (tensor.find("embed_positions") != std::string::npos) row = 2;  // Position 0
    const size_t at = data_ + about.at("data_offsets").at(0).get<size_t>() + 4 * row * columns + 12;
    std::string damaged = bytes_;
    std::memcpy(damaged.data() + at, &value, sizeof(value));
    write_file(path() + "/" + kWeights, damaged);
  }

 private:
  TempDirectory directory_;
  std::string bytes_;
  nlohmann::json header_;
  size_t data_ = 0;
};

Finish answer(const std::string& checkpoint, const EngineFlags& flags) {
  const auto runtime = Runtime::open(checkpoint, flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  Request request;
  request.prompt = {kToken, 6, 7};
  request.max_tokens = 1;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const auto sink = std::make_shared<test::CollectingSink>();
  REQUIRE(runtime.value()->scheduler().submit(request, sink).ok());
  return sink->wait();
}

void check_every_tensor(const std::string& device, Format format,
                        const std::string& quantized_compute) {
  const Checkpoint checkpoint(test::source_directory() +
                              "/tests/golden/checkpoints/pre_ln_relu/safetensors");
  EngineFlags flags;
  flags.device = device;
  flags.format = format;
  flags.quantized_compute = quantized_compute;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{1} << 30;
  if (device == "cuda") flags.device_memory_bytes = uint64_t{1} << 30;
  CHECK(checkpoint.tensors().size() == 36);
  for (const std::string& tensor : checkpoint.tensors()) {
    const test::TemporaryCache cache;
    checkpoint.damage(tensor, std::nanf(""));
    const Finish finish = answer(checkpoint.path(), flags);
    INFO(device << ", " << format_name(format) << ' ' << quantized_compute << ", " << tensor);
    CHECK(finish.reason == FinishReason::kError);
    CHECK_THAT(std::string(finish.status.message()), Catch::Contains("NaN"));
  }
}

TEST_CASE("NaN in any tensor ends a request in an error", "[slow]") {
  const auto [format, quantized_compute] =
      GENERATE(std::pair(Format::kF32, "auto"), std::pair(Format::kBF16, "auto"),
               std::pair(Format::kF16, "auto"), std::pair(Format::kQ4, "auto"),
               std::pair(Format::kQ4, "float"), std::pair(Format::kQ8, "auto"),
               std::pair(Format::kQ8, "float"));
  const std::string compute = quantized_compute;
  if (!test::emulated()) check_every_tensor("cpu", format, compute);
  if (test::has_accelerator() && compute == "auto") check_every_tensor("cuda", format, compute);
}

}  // namespace
}  // namespace spillway::nan_test
