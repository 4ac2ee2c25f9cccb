// Conversion in vectors against the scalar one, bit by bit, on every set of instructions of this
// processor.
#include "kernels/convert_numbers.h"

#include <hwy/highway.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <vector>
#include "tests/support/instruction_sets.h"

namespace spillway::convert_numbers_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// All 16-bit patterns; of float32 those around every exponent, rounding edge and NaN, and others.
std::vector<std::byte> patterns(DType type) {
  std::vector<std::byte> bytes;
  const auto add = [&](const auto& bits) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(bits));
    std::memcpy(bytes.data() + at, &bits, sizeof(bits));
  };
  if (type != DType::kF32) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) add(static_cast<uint16_t>(bits));
    return bytes;
  }
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xefffu,
                               0xf000u, 0xf001u, 0xffffu}) {
      add(high << 16 | low);
    }
  }
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) add(static_cast<uint32_t>(random()));
  return bytes;
}

TEST_CASE("a number converted in a vector has the bits of one converted alone") {
  test::for_each_instruction_set([] {
    for (const DType from : kTypes) {
      const auto source = patterns(from);
      const size_t count = source.size() / dtype_bytes(from);
      for (const DType to : kTypes) {
        INFO(dtype_name(from) << " to " << dtype_name(to));
        std::vector<std::byte> expected(count * dtype_bytes(to)), converted(expected.size());
        convert_elements(from, source.data(), to, expected.data(), count);
        convert_numbers(from, source.data(), to, converted.data(), count);
        CHECK(converted == expected);
      }
    }
  });
}

TEST_CASE("a run of any length and alignment is converted, and nothing beside it is written") {
  test::for_each_instruction_set([] {
    for (const DType from : kTypes) {
      const auto source = patterns(from);
      for (const DType to : kTypes) {
        for (size_t count = 0; count < 140; ++count) {
          std::vector<std::byte> expected(1 + 140 * dtype_bytes(to) + 1, std::byte{0x5a});
          auto converted = expected;
          convert_elements(from, source.data() + 1, to, expected.data() + 1, count);
          convert_numbers(from, source.data() + 1, to, converted.data() + 1, count);
          CHECK(converted == expected);
        }
      }
    }
  });
}

TEST_CASE("a number that is not finite is found wherever it stands") {
  test::for_each_instruction_set([] {
    for (const DType from : kTypes) {
      for (const size_t count : {1, 8, 63, 64, 65, 200}) {
        for (size_t at = 0; at < count; ++at) {
          std::vector<float> wide(count, -2.5f);
          wide[at] = at % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                 : -std::numeric_limits<float>::infinity();
          std::vector<std::byte> numbers(count * dtype_bytes(from)), to(count * 4);
          convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), from,
                           numbers.data(), count);
          CHECK(any_non_finite(from, numbers.data(), count));
          CHECK(any_non_finite(from, numbers.data(), at) == false);
          for (const DType type : kTypes) {
            ConversionCounts counts;
            convert_numbers(from, numbers.data(), type, to.data(), count, &counts);
            CHECK(counts.source.nan == (at % 2 == 0 ? 1 : 0));
            CHECK(counts.source.inf == (at % 2 == 0 ? 0 : 1));
            CHECK(counts.overflow == 0);
          }
        }
      }
    }
  });
}

TEST_CASE("what becomes infinite by rounding is an overflow, what just fits is not") {
  test::for_each_instruction_set([] {
    for (const size_t count : {1, 64, 200}) {
      const auto overflow = [&](DType to, uint32_t bits) {
        std::vector<uint32_t> numbers(count, 0x3f800000u);
        numbers.back() = bits;
        std::vector<std::byte> target(count * 4);
        ConversionCounts counts;
        convert_numbers(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), to,
                        target.data(), count, &counts);
        CHECK(counts.source.total() == 0);
        return counts.overflow;
      };
      CHECK(overflow(DType::kF16, 0xc77fefffu) == 0);
      CHECK(overflow(DType::kF16, 0xc77ff000u) == 1);
      CHECK(overflow(DType::kBF16, 0x7f7f7fffu) == 0);
      CHECK(overflow(DType::kBF16, 0x7f7f8000u) == 1);
      CHECK(overflow(DType::kF32, 0x7f7fffffu) == 0);
    }
  });
}

}  // namespace
}  // namespace spillway::convert_numbers_test
