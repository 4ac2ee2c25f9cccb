#include "tests/support/test_devices.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/cpu/amx.h"

namespace spillway::test {

namespace {

std::string_view cuda_wish() {
  const char* wish = std::getenv("SPILLWAY_TEST_CUDA");
  return wish == nullptr ? "" : wish;
}

bool only_cuda() {
  return cuda_wish() == "only";
}

// None where there is none, unless it is asked for: then a test without it fails.
std::unique_ptr<Device> cuda_device() {
  auto gpu = open_cuda_device(0);
  if (gpu.ok()) return std::move(gpu).value();
  if (cuda_wish() == "required" || only_cuda()) {
    throw std::runtime_error(
        "SPILLWAY_TEST_CUDA=" + std::string(cuda_wish()) +
        ", but the device does not open: " + std::string(gpu.status().message()));
  }
  return nullptr;
}

}  // namespace

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  if (only_cuda()) {
    devices.push_back(cuda_device());
    return devices;
  }
  devices.push_back(open_cpu_device(2, CpuMatmul::kPanels).value());
  auto pairs = open_cpu_device(2, CpuMatmul::kBf16Dot).value();
  if (pairs->activation_dtype(Format::kQ4) == DType::kBF16) devices.push_back(std::move(pairs));
  if (cpu::has_amx_bf16()) devices.push_back(open_cpu_device(2, CpuMatmul::kTiles).value());
  if (auto gpu = cuda_device()) devices.push_back(std::move(gpu));
  return devices;
}

bool has_accelerator() {
  static const bool there = cuda_device() != nullptr;
  return there;
}
void shuffle_accelerator(uint64_t) {}
size_t accelerator_leaks() {
  return 0;
}

bool sums_by_shape() {
  return has_accelerator();
}
void emulate_sums_by_shape(bool) {}

bool emulated() {
  return false;
}

bool thorough() {
#ifdef SPILLWAY_SANITIZED
  return false;
#else
  return true;
#endif
}

}  // namespace spillway::test
