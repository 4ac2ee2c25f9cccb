// test_devices() of cuda_test.
#include "tests/support/test_devices.h"

namespace spillway::test {

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_cuda_device(0).value());
  return devices;
}

bool thorough() {
  return false;
}

}  // namespace spillway::test
