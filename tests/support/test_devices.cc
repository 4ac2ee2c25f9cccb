#include "tests/support/test_devices.h"

namespace spillway::test {

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_cpu_device(2, CpuProducts::kPanels).value());
  auto pairs = open_cpu_device(2, CpuProducts::kPairs).value();
  if (pairs->activation_dtype(DType::kQ4) == DType::kBF16) devices.push_back(std::move(pairs));
  auto onednn = open_cpu_device(2, CpuProducts::kOneDnn).value();
  const bool differs = onednn->matrix_layout(DType::kF32) != devices[0]->matrix_layout(DType::kF32);
  if (differs) devices.push_back(std::move(onednn));
  auto gpu = open_cuda_device(0);
  if (gpu.ok()) devices.push_back(std::move(gpu).value());
  return devices;
}

bool has_accelerator() {
  static const bool there = open_cuda_device(0).ok();
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

bool thorough() {
  return true;
}

}  // namespace spillway::test
