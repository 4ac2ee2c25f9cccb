#include "tests/support/test_devices.h"

namespace spillway::test {

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_cpu_device(2).value());
  auto gpu = open_cuda_device(0);
  if (gpu.ok()) devices.push_back(std::move(gpu).value());
  return devices;
}

bool has_accelerator() {
  return test_devices().size() > 1;
}
void shuffle_accelerator(uint64_t) {}
size_t accelerator_leaks() {
  return 0;
}

bool thorough() {
  return true;
}

}  // namespace spillway::test
