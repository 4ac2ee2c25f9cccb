// Host memory for the copy engines: registered in pieces, copied across their ends, given back
// whole; and what happens where the driver registers nothing.
#include "kernels/cuda/pinned_memory.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/random_data.h"

namespace spillway::pinned_memory_test {
namespace {

constexpr size_t kBytes = 3 * cuda::kRegisteredBytesMax + 4096 + 12;

bool zero(const Buffer& buffer) {
  const std::vector<std::byte> zeros(buffer.bytes());
  return std::memcmp(buffer.data(), zeros.data(), zeros.size()) == 0;
}

TEST_CASE("pinned memory is zeroed, registered in pieces and given back whole") {
  const auto device = open_cuda_device(0).value();
  const size_t before = fake_cudart::leaks();
  {
    const Buffer buffer = device->allocate(Memory::kPinned, kBytes).value();
    CHECK(zero(buffer));
    CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 4096 == 0);
    // Three whole pieces and what is before and behind them.
    CHECK(fake_cudart::registrations() >= 4);
    CHECK(fake_cudart::registrations() <= 5);
  }
  CHECK(fake_cudart::leaks() == before);
}

TEST_CASE("a copy goes across the ends of registered pieces, there and back") {
  const auto device = open_cuda_device(0).value();
  const auto stream = device->new_stream("copies");
  const Buffer from = device->allocate(Memory::kPinned, kBytes).value();
  const Buffer there = device->allocate(Memory::kDevice, kBytes).value();
  const Buffer back = device->allocate(Memory::kPinned, kBytes).value();
  for (size_t i = 0; i < kBytes; ++i) from.data()[i] = static_cast<std::byte>(i * 2654435761 >> 13);
  stream->copy(there.data(), from.data(), kBytes);
  stream->copy(back.data(), there.data(), kBytes);
  REQUIRE(stream->record().wait().ok());
  CHECK(std::memcmp(from.data(), back.data(), kBytes) == 0);
}

TEST_CASE("memory that the driver does not register is its own") {
  const auto device = open_cuda_device(0).value();
  const size_t before = fake_cudart::leaks();
  for (const size_t after : {0, 2}) {
    fake_cudart::refuse_registration(cudaErrorNotSupported, after);
    const Buffer buffer = device->allocate(Memory::kPinned, kBytes).value();
    fake_cudart::refuse_registration(cudaSuccess);
    CHECK(zero(buffer));
    CHECK(fake_cudart::registrations() == 0);
    CHECK(fake_cudart::leaks() == before + 1);
    // And nobody is blamed for the refusal.
    const auto stream = device->new_stream("copies");
    stream->copy(buffer.data(), buffer.data() + 64, 64);
    CHECK(stream->record().wait().ok());
  }
  CHECK(fake_cudart::leaks() == before);
}

}  // namespace
}  // namespace spillway::pinned_memory_test
