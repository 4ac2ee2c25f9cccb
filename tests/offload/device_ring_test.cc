// A ring of device memory: what the compute stream sees of the host, and the host of it. Copies of
// an emulated device are done in any order that the events allow.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include "offload/device_ring.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/support/skip.h"
#include "tests/support/test_devices.h"

namespace spillway::device_ring_test {
namespace {

constexpr uint64_t kBytes = 4096;

struct Fixture {
  Fixture() {
    if (!test::has_accelerator()) {
      test::skip("no device with memory of its own");
      return;
    }
    device = std::move(test::test_devices().back());
    compute = device->new_stream("compute");
    memory = device->allocate(Memory::kDevice, StagingRing::bytes_for(2 * kBytes, kBytes)).value();
    host = device->allocate(Memory::kPinned, 8 * kBytes).value();
    seen = device->allocate(Memory::kPinned, 8 * kBytes).value();
    for (size_t i = 0; i < host.bytes(); ++i) host.data()[i] = value_at(i);
    ring.emplace(*device, *compute, std::span(memory.data(), memory.bytes()), "test");
  }
  static std::byte value_at(size_t i) { return static_cast<std::byte>(i / kBytes * 37 + i % 251); }
  std::byte* object(size_t i) { return host.data() + i * kBytes; }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute;
  Buffer memory, host, seen;
  std::optional<DeviceRing> ring;
};

TEST_CASE_METHOD(Fixture, "device ring: work sees what was brought, the host gets back changes") {
  if (!ring) return;
  const std::vector<std::byte> change(256, std::byte{0xee});
  for (size_t i = 0; i < 8; ++i) {
    std::byte* const piece = ring->upload(object(i), kBytes, kBytes);
    REQUIRE(piece != nullptr);
    ring->arrive();
    compute->copy(seen.data() + i * kBytes, piece, kBytes);
    compute->copy(piece + 512, change.data(), change.size());
    const ByteRange changed{512, 512 + change.size()};
    ring->write_back(object(i), std::span(&changed, i % 2));
  }
  REQUIRE(ring->sync().ok());
  REQUIRE(compute->record().wait().ok());
  CHECK(ring->h2d_bytes() == 8 * kBytes);
  CHECK(ring->d2h_bytes() == 4 * change.size());
  size_t wrong_seen = 0, wrong_home = 0;
  for (size_t i = 0; i < host.bytes(); ++i) {
    wrong_seen += seen.data()[i] != value_at(i);
    const bool changed = i / kBytes % 2 == 1 && i % kBytes >= 512 && i % kBytes < 768;
    wrong_home += host.data()[i] != (changed ? std::byte{0xee} : value_at(i));
  }
  CHECK(wrong_seen == 0);
  CHECK(wrong_home == 0);
}

TEST_CASE_METHOD(Fixture, "device ring: there is room again when the oldest piece is finished") {
  if (!ring) return;
  for (int i = 0; i < 3; ++i) REQUIRE(ring->upload(object(0), 0, kBytes) != nullptr);
  CHECK(ring->upload(object(0), 0, kBytes) == nullptr);
  ring->finish(1);
  CHECK(ring->upload(object(0), 0, kBytes) != nullptr);
  CHECK(ring->upload(object(0), 0, kBytes) == nullptr);
  ring->clear();
  for (int i = 0; i < 3; ++i) CHECK(ring->upload(object(0), 0, kBytes) != nullptr);
  CHECK(ring->h2d_bytes() == 0);  // Nothing was to be read.
}

}  // namespace
}  // namespace spillway::device_ring_test
