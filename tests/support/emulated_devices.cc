// test_devices() of cuda_test.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/cuda_emulation.h"
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

bool emulated() {
  return true;
}

bool thorough() {
  return false;
}

namespace {

// A test case meets the same orders whatever ran before it, and says with which seed it failed.
class Seeds final : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    TestEventListenerBase::testCaseStarting(test);
    emulation::set_seed(0);
    fake_cudart::set_seed(0);
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    TestEventListenerBase::testCaseEnded(stats);
    if (stats.totals.assertions.failed == 0) return;
    std::fprintf(stderr, "\"%s\" failed with SPILLWAY_EMULATION_SEED=%llu\n",
                 stats.testInfo.name.c_str(),
                 static_cast<unsigned long long>(emulation::run_seed()));
  }
};
CATCH_REGISTER_LISTENER(Seeds)

}  // namespace

}  // namespace spillway::test
