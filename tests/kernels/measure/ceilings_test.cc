// Ceilings on every device of this program: possible ones, of everything that `bench` asks for.
#include "kernels/measure/ceilings.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/memory_probe.h"
#include "tests/support/test_devices.h"

namespace spillway::ceilings_test {
namespace {

void check_rate(double rate) {
  CHECK((std::isfinite(rate) && rate > 0));
}

TEST_CASE("every matrix has a ceiling, of its own and the accelerator's library's") {
  for (const auto& device : test::test_devices()) {
    for (const Format format : {Format::kBF16, Format::kQ4}) {
      INFO(device->name() << ", " << format_name(format));
      const LinearProbe probes[] = {{format, 2, 64, 64}, {format, 12, 33, 64}};
      const auto ceilings = measure_matrices(*device, probes);
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
    check_rate(measure_memory_read(*device).value());
    check_rate(measure_prompt_attention(*device, {Format::kF16, 2, 20, 2, 64}).value());
    if (!device->discrete()) {
      check_rate(measure_decode_attention(*device, {Format::kF16, 1, 200, 2, 64}).value());
      continue;
    }
    const CopyCeiling copies = measure_copies(*device).value();
    check_rate(copies.to_device);
    check_rate(copies.to_host);
    check_rate(copies.both);
  }
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
    const Status status = measure_matrices(*device, std::span(&probe, 1)).status();
    CHECK(status.code() == Code::kCapacity);
  }
}

}  // namespace
}  // namespace spillway::ceilings_test
