// Rates on every device of this program: as many samples as asked for, all of them possible.
#include "kernels/measure/rates.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/base/clock.h"
#include "kernels/base/format.h"
#include "tests/support/test_devices.h"

namespace spillway::rates_test {
namespace {

constexpr RunLimits kThree{.runs_min = 3, .runs_max = 3, .seconds_max = 0, .run_seconds = 0};

void check_rates(const Result<Rates>& rates, size_t samples) {
  INFO(rates.status().message());
  REQUIRE(rates.ok());
  CHECK(rates.value().size() == samples);
  for (const double rate : rates.value()) CHECK((std::isfinite(rate) && rate > 0));
}

TEST_CASE("rates of memory, matrices and attention on every device") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    check_rates(memory_read_rates(*device, size_t{2} << 20, kThree), 3);
    const auto pool = WeightPool::open(*device, size_t{1} << 16);
    REQUIRE(pool.ok());
    for (const Format format : kFormats) {
      const LinearProbe probe{format, 3, 64, 64};
      INFO(format_name(format));
      REQUIRE(weight_bytes(*device, probe) <= pool.value().memory().bytes());
      check_rates(linear_rates(*device, pool.value(), probe, kThree), 3);
    }
    for (const int64_t kv_heads : {2, 4}) {
      const AttentionProbe probe{.kv = Format::kF16,
                                 .sequences = 2,
                                 .tokens = 20,
                                 .heads = 4,
                                 .kv_heads = kv_heads,
                                 .head_size = 64};
      CHECK(attended_bytes(probe) == 2.0 * 2 * 20 * static_cast<double>(kv_heads) * 64 * 2);
      check_rates(prompt_attention_rates(*device, probe, kThree), 3);
      check_rates(decode_attention_rates(*device, probe, kThree), 3);
    }
    if (!device->discrete()) continue;
    const auto copies = copy_rates(*device, size_t{1} << 16, kThree);
    REQUIRE(copies.ok());
    for (const Rates& rates : {copies->to_device, copies->to_host, copies->both}) {
      check_rates(rates, 3);
    }
    check_rates(small_op_rates(*device, kThree), 3);
    check_rates(round_trip_rates(*device, kThree), 3);
  }
  CHECK(test::accelerator_leaks() == 0);
}

TEST_CASE("what rates are measured on is random, and finite in every format") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    const auto pool = WeightPool::open(*device, size_t{3} << 20);
    REQUIRE(pool.ok());
    const Buffer& memory = pool.value().memory();
    std::vector<uint16_t> words(memory.bytes() / sizeof(uint16_t));
    const auto stream = device->new_stream("test");
    stream->copy(reinterpret_cast<std::byte*>(words.data()), memory.data(), memory.bytes());
    REQUIRE(stream->record().wait().ok());
    std::set<uint16_t> kinds;
    double sum = 0;
    bool finite = true;
    for (size_t i = 0; i < words.size(); ++i) {
      const float half = f16_to_f32(words[i]), brain = bf16_to_f32(words[i]);
      const float single = std::bit_cast<float>(static_cast<uint32_t>(words[i]) << 16 |
                                                words[i == 0 ? words.size() - 1 : i - 1]);
      finite = finite && std::isfinite(half) && std::isfinite(brain) && std::isfinite(single) &&
               half != 0 && brain != 0;
      sum += half;
      kinds.insert(words[i]);
    }
    CHECK(finite);
    CHECK(kinds.size() > 4000);  // Constant data takes a GPU less power: its clock would be higher.
    CHECK(std::abs(sum / static_cast<double>(words.size())) < 0.01);
    for (const size_t apart : {size_t{1} << 12, size_t{1} << 20}) {
      CHECK(std::memcmp(words.data(), words.data() + apart / sizeof(uint16_t), 256) != 0);
    }
  }
}

TEST_CASE("rates stop at their time, but not before the least number of samples") {
  const auto device = open_cpu_device(1).value();
  const RunLimits two{.runs_min = 2, .runs_max = 1000, .seconds_max = 0};
  check_rates(memory_read_rates(*device, size_t{1} << 20, two), 2);
  const RunLimits some{
      .runs_min = 1, .runs_max = 1 << 30, .seconds_max = 0.05, .run_seconds = 0.01};
  const double start = steady_seconds();
  const auto rates = memory_read_rates(*device, size_t{1} << 20, some);
  REQUIRE(rates.ok());
  CHECK(rates.value().size() < 1000);  // Each took about 10 ms.
  CHECK(steady_seconds() - start >= 0.05);
}

TEST_CASE("rates without the memory for them are an error") {
  const auto device = open_cpu_device(1).value();
  const size_t too_much = size_t{1} << 60;
  CHECK(memory_read_rates(*device, too_much, kThree).status().code() == Code::kCapacity);
  CHECK(WeightPool::open(*device, too_much).status().code() == Code::kCapacity);
}

}  // namespace
}  // namespace spillway::rates_test
