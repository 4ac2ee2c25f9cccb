#include "tests/support/test_devices.h"

namespace spillway::test {

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_cpu_device(2).value());
  auto gpu = open_cuda_device(0);
  if (gpu.ok()) devices.push_back(std::move(gpu).value());
  return devices;
}

bool thorough() {
  return true;
}

}  // namespace spillway::test
