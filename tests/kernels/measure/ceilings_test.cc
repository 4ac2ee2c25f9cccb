// Ceilings on every device of this program: possible ones, of everything that `bench` asks for.
#include "kernels/measure/ceilings.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/processors.h"
#include "kernels/cpu/memory_probe.h"
#include "tests/support/test_devices.h"

namespace spillway::ceilings_test {
namespace {

constexpr size_t kHostBytes = size_t{4} << 20;

void check_rate(double rate) {
  CHECK((std::isfinite(rate) && rate > 0));
}

TEST_CASE("every matrix has a ceiling, of its own and the accelerator's library's") {
  for (const auto& device : test::test_devices()) {
    for (const Format format : {Format::kBF16, Format::kQ4}) {
      INFO(device->name() << ", " << format_name(format));
      const LinearProbe probes[] = {{format, 2, 64, 64}, {format, 12, 33, 64}};
      const auto ceilings = measure_matrices(*device, probes, kHostBytes);
      INFO(ceilings.status().message());
      REQUIRE(ceilings.ok());
      REQUIRE(ceilings.value().size() == 2);
      for (const MatrixCeiling& ceiling : ceilings.value()) {
        check_rate(ceiling.ours);
        if (device->discrete()) check_rate(ceiling.library);
        CHECK(ceiling.best() == std::max(ceiling.ours, ceiling.library));
      }
    }
  }
  CHECK(test::accelerator_leaks() == 0);
}

TEST_CASE("memory, attention and the link have ceilings") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    check_rate(measure_memory_read(*device, kHostBytes).value());
    check_rate(measure_prompt_attention(*device, {Format::kF16, 2, 20, 4, 2, 64}).value());
    if (!device->discrete()) {
      check_rate(
          measure_decode_attention(*device, {Format::kF16, 1, 200, 4, 2, 64}, kHostBytes).value());
      continue;
    }
    const CopyCeiling copies = measure_copies(*device).value();
    check_rate(copies.to_device);
    check_rate(copies.to_host);
    check_rate(copies.both);
  }
}

TEST_CASE("a meter of memory reads one part after the other") {
  constexpr size_t kMiB = size_t{1} << 20;
  PartsInTurn parts(262 * kMiB);
  CHECK(parts.bytes() == 87 * kMiB);
  for (const size_t at : {size_t{0}, 87 * kMiB, 174 * kMiB, size_t{0}}) CHECK(parts.next() == at);
  PartsInTurn one(3 * kMiB);
  CHECK(one.bytes() == 3 * kMiB);
  for (int i = 0; i < 2; ++i) CHECK(one.next() == 0);
  const auto device = open_cpu_device(1).value();
  MemoryMeter meter = MemoryMeter::open(*device, 4 * kMiB).value();
  CHECK(meter.bytes() == 4 * kMiB);
  for (int i = 0; i < 2; ++i) check_rate(meter.measure());
}

TEST_CASE("what measurements read is twice the caches, as far as memory allows") {
  const size_t free = bytes_past_caches(size_t{1} << 40);
  CHECK(free >= size_t{256} << 20);
  CHECK(free >> 20 << 20 == free);
  CHECK(free >= 2 * last_level_cache_bytes(allowed_processors()) >> 20 << 20);
  CHECK(bytes_past_caches(0) == size_t{128} << 20);
}

TEST_CASE("every order of reading memory reads all of it") {
  cpu::CpuContext context(2, CpuMatmul::kFastest);
  constexpr size_t kBytes = size_t{2} << 20, kWords = kBytes / sizeof(uint64_t);
  const auto device = open_cpu_device(1).value();
  const Buffer buffer = device->allocate(Memory::kDevice, kBytes).value();
  auto* words = reinterpret_cast<uint64_t*>(buffer.data());
  for (const cpu::ReadPattern& pattern : cpu::read_patterns()) {
    INFO(pattern.streams << " streams, hint " << static_cast<int>(pattern.hint));
    CHECK(cpu::read_memory(context, buffer.data(), kBytes, pattern) == 0);
    for (const size_t at : {size_t{0}, size_t{7}, size_t{65536 + 3}, kWords / 2 - 1, kWords - 1}) {
      words[at] = 1;
      CHECK(cpu::read_memory(context, buffer.data(), kBytes, pattern) != 0);
      words[at] = 0;
    }
  }
}

TEST_CASE("a product that no memory holds is an error and no rate") {
  // A part of the outputs would do on a CPU, but not of the inputs.
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    const LinearProbe probe{Format::kF32, 1, 64, int64_t{1} << 50};
    const Status status = measure_matrices(*device, std::span(&probe, 1), kHostBytes).status();
    CHECK(status.code() == Code::kCapacity);
  }
}

}  // namespace
}  // namespace spillway::ceilings_test
