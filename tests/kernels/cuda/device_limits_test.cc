// What a device cannot do is refused before it fails in mid-run.
#include <catch2/catch.hpp>
#include <filesystem>

#include "kernels/device.h"
#include "offload/convert/converter.h"
#include "server/cli/convert/convert.h"
#include "server/runtime.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/golden.h"
#include "tests/support/temp_directory.h"

namespace spillway::device_limits_test {
namespace {

// Whether the emulation takes such a launch, and then runs it.
bool launches(dim3 blocks, dim3 threads, size_t shared_bytes) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  bool ran = false;
  emulation::launch(stream, blocks, threads, shared_bytes, [&] { ran = true; });
  const cudaError_t error = cudaGetLastError();
  CHECK(cudaGetLastError() == cudaSuccess);  // The first told it.
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(ran == (error == cudaSuccess));
  return ran;
}

TEST_CASE("the emulation refuses the launches that a device refuses") {
  CHECK(launches(dim3(1), dim3(1024), size_t{48} << 10));
  CHECK_FALSE(launches(dim3(1), dim3(32), (size_t{48} << 10) + 1));
  CHECK_FALSE(launches(dim3(1), dim3(1025), 0));
  CHECK_FALSE(launches(dim3(1), dim3(32, 33), 0));
  CHECK(launches(dim3(70000), dim3(1), 0));
  CHECK_FALSE(launches(dim3(1, 65536), dim3(1), 0));
  CHECK_FALSE(launches(dim3(1, 1, 65536), dim3(1), 0));
  CHECK_FALSE(launches(dim3(0), dim3(32), 0));
}

TEST_CASE("a driver that is too old is named with its CUDA version and the one that is needed") {
  fake_cudart::set_driver_version(12020);
  const Status status = open_cuda_device(0).status();
  fake_cudart::set_driver_version(13000);
  CHECK(status.code() == Code::kNotFound);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("CUDA 12.2") && Catch::Contains("needs 13.0"));
  CHECK(open_cuda_device(0).ok());
}

TEST_CASE("a device that our kernels are not compiled for is named, with what is needed") {
  const std::pair<int, int> too_old[] = {{7, 0}, {6, 1}, {7, 2}};
  for (const auto& [major, minor] : too_old) {
    fake_cudart::set_capability(major, minor);
    const Status status = open_cuda_device(1).status();
    INFO(status.message());
    CHECK(status.code() == Code::kNotFound);
    const std::string has = std::to_string(major) + "." + std::to_string(minor);
    for (const std::string& part : {std::string("device 1"), std::string("emulated device"), has,
                                    std::string("7.5"), std::string("--device cpu")}) {
      CHECK(status.message().find(part) != std::string_view::npos);
    }
  }
  const std::pair<int, int> good[] = {{7, 5}, {8, 0}, {9, 0}, {12, 1}};
  for (const auto& [major, minor] : good) {
    fake_cudart::set_capability(major, minor);
    CHECK(open_cuda_device(0).ok());
  }
  fake_cudart::set_capability(9);
}

TEST_CASE("a device that gives no context says why, not that its memory is short") {
  for (const cudaError_t why : {cudaErrorDevicesUnavailable, cudaErrorMemoryAllocation}) {
    fake_cudart::refuse_context(why);
    const Status status = open_cuda_device(1).status();
    EngineFlags flags;
    flags.device = "auto";
    flags.dummy_weights = true;
    const Status opened = Runtime::open("opt-125m", flags, {}).status();
    fake_cudart::refuse_context(cudaSuccess);
    INFO(status.message());
    CHECK(status.code() ==
          (why == cudaErrorMemoryAllocation ? Code::kCapacity : Code::kDeviceLost));
    for (const std::string& part :
         {std::string(cudaGetErrorString(why)), std::string("making a context"),
          std::string("device 1"), std::string("--gpu"), std::string("--device cpu")}) {
      CHECK(status.message().find(part) != std::string_view::npos);
    }
    INFO(opened.message());
    CHECK(opened.code() == status.code());
    CHECK(opened.message().find("making a context") != std::string_view::npos);
  }
  CHECK(open_cuda_device(1).ok());
}

TEST_CASE("a model whose heads are too wide for CUDA is refused before it is converted") {
  const test::TemporaryCache cache;
  const TempDirectory temp;
  ModelShape shape = checkpoint_shape();
  shape.heads = shape.kv_heads = 1;
  std::vector<std::string> said;
  const auto open = [&](const std::string& model, const char* device) {
    EngineFlags flags;
    flags.device = device;
    flags.host_memory_bytes = flags.device_memory_bytes = uint64_t{1} << 30;
    RuntimeOptions options;
    options.say = [&](const std::string& line) { said.push_back(line); };
    return Runtime::open(model, flags, options).status();
  };
  const auto checkpoint = [&](int64_t head_size) {
    shape.hidden = shape.embedding = shape.head_size = head_size;
    const std::string directory = temp / std::to_string(head_size);
    std::filesystem::create_directories(directory);
    write_file(directory + "/config.json", opt_config(shape));
    write_file(directory + "/model.safetensors", safetensors_file(opt_tensors(shape)));
    return directory;
  };
  const std::string wide = checkpoint(320), packed = temp / "wide.spill";
  REQUIRE(convert_checkpoint(wide, packed, {}).ok());
  for (const std::string& model : {wide, packed}) {
    const Status status = open(model, "cuda");
    INFO(status.message());
    CHECK(status.code() == Code::kInvalidArgument);
    for (const char* part : {"320", "256", "--device cpu"}) {
      CHECK(status.message().find(part) != std::string_view::npos);
    }
  }
  CHECK(said.empty());  // A conversion is announced.
  ConvertFlags convert;
  convert.directory = wide;
  convert.output = temp / "unwanted.spill";
  convert.device = "cuda";
  CHECK(run_convert(convert, {}).code() == Code::kInvalidArgument);
  CHECK_FALSE(std::filesystem::exists(convert.output));
  CHECK(open(wide, "cpu").ok());
  CHECK(said.size() == 1);
  CHECK(open(checkpoint(256), "cuda").ok());
}

}  // namespace
}  // namespace spillway::device_limits_test
