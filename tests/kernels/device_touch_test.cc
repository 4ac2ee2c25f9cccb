// Device::touch brings in fresh pages and leaves what is there.
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/device.h"

namespace spillway::device_touch_test {
namespace {

constexpr size_t kPage = 4096;

size_t resident_pages(const Buffer& buffer) {
  std::vector<unsigned char> pages((buffer.bytes() + kPage - 1) / kPage);
  REQUIRE(mincore(buffer.data(), buffer.bytes(), pages.data()) == 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST_CASE("touching a buffer of the CPU brings all of it into memory and changes nothing") {
  const auto device = open_cpu_device(2).value();
  // More than one piece of touch(), and a last one that is not whole.
  constexpr size_t kBytes = (size_t{40} << 20) + 5 * kPage + 1;
  const Buffer buffer = device->allocate(Memory::kDevice, kBytes).value();
  buffer.data()[kBytes - 1] = std::byte{7};
  CHECK(resident_pages(buffer) < kBytes / kPage);
  device->prefault(buffer);
  CHECK(resident_pages(buffer) == kBytes / kPage + 1);
  CHECK(buffer.data()[kBytes - 1] == std::byte{7});
  CHECK(std::all_of(buffer.data(), buffer.data() + kBytes - 1,
                    [](std::byte value) { return value == std::byte{0}; }));
  device->prefault(Buffer());
}

}  // namespace
}  // namespace spillway::device_touch_test
