// test_devices() of cuda_test.
#include "tests/support/fake_cudart.h"
#include "tests/support/test_devices.h"

namespace spillway::test {

std::vector<std::unique_ptr<Device>> test_devices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(open_cuda_device(0).value());
  return devices;
}

bool has_accelerator() {
  return true;
}
void shuffle_accelerator(uint64_t seed) {
  fake_cudart::set_seed(seed);
}
size_t accelerator_leaks() {
  return fake_cudart::leaks();
}

bool sums_by_shape() {
  return fake_cudart::sums_by_shape();
}
void emulate_sums_by_shape(bool on) {
  fake_cudart::set_sums_by_shape(on);
}

bool thorough() {
  return false;
}

}  // namespace spillway::test
