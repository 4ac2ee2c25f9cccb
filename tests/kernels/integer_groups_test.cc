// Weights of 4 bits whose groups are integers.
#include "kernels/integer_groups.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/weight_layout.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_data.h"

namespace spillway::integer_groups_test {
namespace {

using test::random_floats;

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<GroupScale> scales;
};

size_t group_of(Format format) {
  return static_cast<size_t>(format_traits(format).group);
}

Quantized quantized(Format format, const std::vector<float>& values) {
  Quantized found{
      std::vector<uint8_t>(values.size()),
      std::vector<GroupScale>((values.size() + group_of(format) - 1) / group_of(format))};
  quantize_weights(format, values, found.codes.data(), found.scales.data());
  return found;
}

// Of quantize_group(), whose scales span each group.
Quantized spanned(Format format, const std::vector<float>& values) {
  Quantized found;
  found.codes.resize(values.size());
  const size_t group = group_of(format);
  for (size_t first = 0; first < values.size(); first += group) {
    found.scales.push_back(
        quantize_group(format_traits(format).bits,
                       std::span(values).subspan(first, std::min(group, values.size() - first)),
                       found.codes.data() + first));
  }
  return found;
}

std::vector<float> numbers_of(Format format, const Quantized& quantized) {
  std::vector<float> numbers;
  for (size_t i = 0; i < quantized.codes.size(); ++i) {
    const GroupScale& scale = quantized.scales[i / group_of(format)];
    numbers.push_back(
        quantized_value(quantized.codes[i], f16_to_f32(scale.scale), f16_to_f32(scale.minimum)));
  }
  return numbers;
}

double error_of(Format format, const Quantized& found, const std::vector<float>& values) {
  QuantError error;
  for (size_t g = 0; g < found.scales.size(); ++g) {
    const size_t first = g * group_of(format);
    const size_t count = std::min(group_of(format), values.size() - first);
    add_group_error(4, std::span(values).subspan(first, count), found.scales[g],
                    found.codes.data() + first, &error);
  }
  CHECK(error.saturated == 0);
  return error.relative_rms();
}

// The largest power of two of which all scales and minima of a stretch are multiples.
double unit_of(std::span<const GroupScale> scales) {
  double unit = 0x1p15;
  for (const GroupScale& scale : scales) {
    for (const double number : {f16_to_f32(scale.scale), f16_to_f32(scale.minimum)}) {
      while (std::fmod(number, unit) != 0) unit /= 2;
    }
  }
  return unit;
}

bool are_integers(std::span<const GroupScale> scales) {
  const double unit = unit_of(scales);
  return std::all_of(scales.begin(), scales.end(), [&](const GroupScale& scale) {
    const double s = f16_to_f32(scale.scale) / unit, z = f16_to_f32(scale.minimum) / unit;
    return s >= 1 && z >= -128 && 15 * s + z <= 127;
  });
}

TEST_CASE("groups of 4-bit weights are integers of one unit in every stretch") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const int64_t count = GENERATE(1, 31, 64, 100, 256, 257, 700, 2048);
  const float deviation = GENERATE(1e-6f, 0.003f, 0.02f, 40.0f, 3000.0f);
  const float offset = GENERATE(0.0f, 0.5f, -3.0f);
  auto values = random_floats(count, 1, deviation);
  for (float& value : values) value += offset * deviation;
  const Quantized found = quantized(format, values);
  const size_t stretch = static_cast<size_t>(kStretch) / group_of(format);
  for (size_t first = 0; first < found.scales.size(); first += stretch) {
    const auto scales =
        std::span(found.scales).subspan(first, std::min(stretch, found.scales.size() - first));
    INFO(count << " numbers of " << deviation << " + " << offset << ", group " << first);
    CHECK(are_integers(scales));
  }
  for (const uint8_t code : found.codes) REQUIRE(code < 16);
}

TEST_CASE("integer groups cost less than groups whose scales span them") {
  const auto [format, gain] =
      GENERATE(std::pair(Format::kQ4, 0.97), std::pair(Format::kQ4_1, 0.995));
  constexpr int64_t kCount = 64 * 4096;
  std::mt19937_64 random(7);
  const auto drawn = [&](auto distribution) {
    std::vector<float> values(kCount);
    for (float& value : values) value = 0.02f * static_cast<float>(distribution(random));
    return values;
  };
  std::exponential_distribution<double> tail;
  const auto laplace = [&](auto& bits) { return (bits() % 2 == 0 ? 1 : -1) * tail(bits); };
  for (const auto& values : {drawn(std::normal_distribution<double>()), drawn(laplace),
                             drawn(std::student_t_distribution<double>(5)),
                             drawn(std::student_t_distribution<double>(3))}) {
    CHECK(error_of(format, quantized(format, values), values) <
          gain * error_of(format, spanned(format, values), values));
  }
}

TEST_CASE("a number far outside costs its own stretch alone") {
  auto values = random_floats(4 * kStretch, 3, 0.02f);
  const std::vector<float> before = numbers_of(Format::kQ4, quantized(Format::kQ4, values));
  values[300] = 2.0f;  // A hundred deviations
  const std::vector<float> after = numbers_of(Format::kQ4, quantized(Format::kQ4, values));
  CHECK(after[300] == Approx(2.0f).epsilon(0.03));
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / kStretch != 300 / kStretch) REQUIRE(after[i] == before[i]);
  }
}

TEST_CASE("what no unit reaches, what is no number and what is zero") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const std::vector<float> zeros(300, 0.0f);
  CHECK(numbers_of(format, quantized(format, zeros)) == zeros);
  const std::vector<float> tiny(300, 1e-30f);
  for (const float number : numbers_of(format, quantized(format, tiny))) {
    CHECK(std::abs(number) <= 0x1p-24f);
  }
  auto values = random_floats(600, 5);
  // The last that 127 of the largest unit reach, and the next.
  values[10] = 32512.0f;
  Quantized found = quantized(format, values);
  CHECK(are_integers(std::span(found.scales).first(1)));
  values[10] = 32513.0f;
  found = quantized(format, values);
  const Quantized plain = spanned(format, values);
  for (size_t i = 0; i < static_cast<size_t>(kStretch); ++i) {
    REQUIRE(found.codes[i] == plain.codes[i]);
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    auto damaged = random_floats(600, 5);
    const auto clean = numbers_of(format, quantized(format, damaged));
    damaged[70] = bad;
    const auto back = numbers_of(format, quantized(format, damaged));
    for (size_t i = 0; i < back.size(); ++i) {
      INFO(i << " of " << bad);
      REQUIRE(std::isnan(back[i]) == (i / group_of(format) == 70 / group_of(format)));
      if (i >= static_cast<size_t>(kStretch)) REQUIRE(back[i] == clean[i]);
    }
  }
}

TEST_CASE("weights of 8 bits have scales that span their groups") {
  const auto values = random_floats(300, 6);
  for (const Format format : kFormats) {
    if (!is_grouped(format) || format_traits(format).bits != 8) continue;
    CHECK(numbers_of(format, quantized(format, values)) ==
          numbers_of(format, spanned(format, values)));
  }
}

TEST_CASE("quantised weights are the same by every instruction set") {
  const Format format = GENERATE(Format::kQ4, Format::kQ4_1);
  const auto values = random_floats(100000, 8, 0.02f);
  const Quantized best = quantized(format, values);
  test::for_each_instruction_set([&] {
    const Quantized found = quantized(format, values);
    CHECK(found.codes == best.codes);
    CHECK(std::memcmp(found.scales.data(), best.scales.data(),
                      best.scales.size() * sizeof(GroupScale)) == 0);
  });
}

}  // namespace
}  // namespace spillway::integer_groups_test
