// The CUDA device answers as the CPU does: the demo model in float32 with the same tokens, it and a
// random opt-125m in float16 to within its rounding. There the CPU computes in float32 and the
// device keeps activations in float16. Two programs run it: endtoend_test on a real device, where
// there is one, and cuda_test on the emulated one, which takes less of each.
#include <catch2/catch.hpp>
#include <random>

#include "offload/config_files.h"
#include "server/runtime.h"
#include "tests/support/answers.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/golden.h"
#include "tests/support/random_data.h"
#include "tests/support/skip.h"
#include "tests/support/test_devices.h"

namespace spillway::cuda_parity_test {
namespace {

using test::Answers;

Answers run_on(const char* device, const std::string& checkpoint, Format format,
               const std::vector<Request>& requests) {
  EngineFlags flags;
  flags.device = device;
  flags.format = flags.kv_format = format;
  flags.block = 8;
  flags.threads = 2;
  flags.host_memory_bytes = uint64_t{2} << 30;
  flags.device_memory_bytes = uint64_t{4} << 30;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(checkpoint, flags, {});
  INFO(runtime.status().message());
  REQUIRE(runtime.ok());
  return test::run_together(*runtime.value(), requests);
}

void check_devices(const std::string& checkpoint, Format format, std::vector<Request> requests) {
  INFO(checkpoint << ", " << format_name(format));
  test::ask_logprobs(&requests);
  const test::TemporaryCache cache;
  CHECK(test::difference(requests, run_on("cpu", checkpoint, format, requests),
                         run_on("cuda", checkpoint, format, requests),
                         test::rounding_tolerance(format, format)) == "");
}

Request greedy(std::vector<int32_t> prompt, int32_t tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

TEST_CASE("the demo model's tokens on CUDA are those on the CPU", "[gpu][slow]") {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  const test::Golden golden = test::read_golden("demo");
  std::vector<Request> requests;
  for (const test::GoldenPrompt& prompt : golden.prompts) {
    if (!test::thorough() && prompt.prompt.size() > 12) continue;
    requests.push_back(greedy(prompt.prompt, test::thorough() ? 64 : 6));
  }
  REQUIRE(requests.size() >= 5);
  check_devices(golden.checkpoints.front(), Format::kF32, requests);
  check_devices(golden.checkpoints.front(), Format::kF16, requests);
}

// A checkpoint of matrices with deviation 0.02, as models are initialised.
void write_random_checkpoint(const std::string& folder, const ModelShape& shape) {
  constexpr float kScale = 0.035f;  // Of numbers evenly over -1..1
  std::vector<TensorData> tensors = opt_tensors(shape, DType::kF16);
  for (TensorData& tensor : tensors) {
    if (tensor.name.find("norm") != std::string::npos) continue;
    const size_t count = tensor.data.size() / dtype_bytes(DType::kF16);
    std::vector<float> values(count);
    auto* const wide = reinterpret_cast<std::byte*>(values.data());
    convert_elements(DType::kF16, tensor.data.data(), DType::kF32, wide, count);
    for (float& value : values) value *= kScale;
    convert_elements(DType::kF32, wide, DType::kF16, tensor.data.data(), count);
  }
  write_file(folder + "/model.safetensors", safetensors_file(tensors));
  write_file(folder + "/config.json", opt_config(shape));
}

TEST_CASE("a random opt-125m's tokens on CUDA are those on the CPU", "[gpu][slow]") {
  if (!test::has_accelerator()) return test::skip("no CUDA device");
  const test::TemporaryCache place;  // For the checkpoint
  ModelShape shape = find_model_shape("opt-125m").value();
  if (!test::thorough()) {
    shape.layers = 2;
    shape.vocabulary = 8192;
  }
  write_random_checkpoint(place.path(), shape);
  std::mt19937_64 random(20261122);
  std::vector<Request> requests;
  for (int i = 0; i < (test::thorough() ? 12 : 2); ++i) {
    requests.push_back(
        greedy(test::random_prompt(random, test::thorough() ? 200 : 4, shape.vocabulary),
               test::thorough() ? 32 : 2));
  }
  check_devices(place.path(), Format::kF16, requests);
}

}  // namespace
}  // namespace spillway::cuda_parity_test
