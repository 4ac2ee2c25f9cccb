// Query and key heads before attention: normed, rotated, on every device, against the scalar
// definition; values are left alone.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::rotate_test {
namespace {

using test::DeviceArray;
using test::random_floats;
using test::relative_error;

struct RotateCase {
  int64_t heads, kv_heads, head_size, dims;
};

// The largest power of two that divides it.
size_t hadamard_of(size_t size) {
  size_t found = 1;
  while (size % (2 * found) == 0) found *= 2;
  return found;
}

TEST_CASE("rotate_heads agrees with its definition", "[sanitizer]") {
  const auto c =
      GENERATE(RotateCase{4, 2, 64, 64}, RotateCase{3, 3, 20, 12}, RotateCase{5, 1, 7, 2},
               RotateCase{2, 1, 80, 40}, RotateCase{1, 1, 128, 128}, RotateCase{2, 2, 32, 0},
               RotateCase{2, 1, 256, 0}, RotateCase{1, 2, 96, 96}, RotateCase{1, 1, 40, 8});
  const bool interleaved = GENERATE(false, true);
  const bool normed = GENERATE(false, true);
  const bool hadamard = GENERATE(false, true);
  constexpr int64_t kRows = 19;
  const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_size;
  const auto in = random_floats(kRows * width, 21, 2.0f);
  const auto query_norm = random_floats(normed ? c.head_size : 0, 22);
  const auto key_norm = random_floats(normed ? c.head_size : 0, 23);
  const auto angles = random_floats(kRows * c.dims / 2, 24, 100.0f);
  const auto half = static_cast<size_t>(c.dims / 2), size = static_cast<size_t>(c.head_size);
  std::vector<float> table, expected;
  for (size_t row = 0; row < kRows; ++row) {
    const std::vector<double> turned(
        angles.begin() + static_cast<std::ptrdiff_t>(row * half),
        angles.begin() + static_cast<std::ptrdiff_t>((row + 1) * half));
    for (const double angle : turned) table.push_back(static_cast<float>(std::cos(angle)));
    for (const double angle : turned) table.push_back(static_cast<float>(std::sin(angle)));
    for (int64_t head = 0; head < c.heads + 2 * c.kv_heads; ++head) {
      const auto first = in.begin() + static_cast<std::ptrdiff_t>(row) * width + head * c.head_size;
      const scalar::Matrix x(first, first + static_cast<std::ptrdiff_t>(size));
      const bool value = head >= c.heads + c.kv_heads;
      const auto& norm = head < c.heads ? query_norm : key_norm;
      const auto y = value ? x
                           : scalar::rotate_head(x, norm, 1e-6, turned, interleaved,
                                                 hadamard ? hadamard_of(size) : 0);
      expected.insert(expected.end(), y.begin(), y.end());
    }
  }
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", head size " << c.head_size << ", dims " << c.dims);
    const auto stream = device->new_stream("test");
    const DeviceArray<float> qkv(*device, *stream, in), there(*device, *stream, table),
        q(*device, *stream, query_norm), k(*device, *stream, key_norm);
    rotate_heads(*stream, {.qkv = qkv.matrix(kRows, width),
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_size = c.head_size,
                           .query_norm = normed ? q.data() : nullptr,
                           .key_norm = normed ? k.data() : nullptr,
                           .epsilon = 1e-6f,
                           .table = there.matrix(kRows, c.dims),
                           .interleaved = interleaved,
                           .hadamard = hadamard});
    CHECK(relative_error(qkv.read(), expected) < 1e-6);
  }
}

TEST_CASE("a row that is rotated alone has the bits that it has among others") {
  constexpr int64_t kRows = 40, kHeads = 3, kSize = 24;
  const auto in = random_floats(kRows * 5 * kSize, 31);
  const auto table = random_floats(kRows * kSize, 32);
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    const DeviceArray<float> all(*device, *stream, in), one(*device, *stream, in),
        there(*device, *stream, table);
    RotateArgs args{.qkv = all.matrix(kRows, 5 * kSize),
                    .heads = kHeads,
                    .kv_heads = 1,
                    .head_size = kSize,
                    .table = there.matrix(kRows, kSize),
                    .hadamard = true};
    rotate_heads(*stream, args);
    for (int64_t row = 0; row < kRows; ++row) {
      args.qkv = one.matrix(kRows, 5 * kSize).slice_rows(row, 1);
      args.table = there.matrix(kRows, kSize).slice_rows(row, 1);
      rotate_heads(*stream, args);
    }
    CHECK(one.read() == all.read());
  }
}

TEST_CASE("a Hadamard matrix leaves scores as they are and spreads what is large") {
  const int64_t size = GENERATE(5, 16, 20, 64, 80, 96, 128, 256);
  INFO("head size " << size);
  auto in = random_floats(3 * size, 33);
  in[static_cast<size_t>(size) + 1] = 1000.0f;  // Of the key
  const auto dot = [&](const std::vector<float>& qkv) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += double{qkv[i]} * double{qkv[size + i]};
    return sum;
  };
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    const auto stream = device->new_stream("test");
    const DeviceArray<float> qkv(*device, *stream, in);
    rotate_heads(*stream, {.qkv = qkv.matrix(1, 3 * size),
                           .heads = 1,
                           .kv_heads = 1,
                           .head_size = size,
                           .table = {},
                           .hadamard = true});
    const std::vector<float> out = qkv.read();
    CHECK(std::abs(dot(out) - dot(in)) < 1e-3 * std::abs(dot(in)));
    const auto largest = [&](const std::vector<float>& of) {
      float most = 0;
      for (int64_t i = size; i < 2 * size; ++i) most = std::max(most, std::abs(of[i]));
      return most;
    };
    const auto block = static_cast<float>(hadamard_of(static_cast<size_t>(size)));
    CHECK(largest(out) < 1.01f * largest(in) / std::sqrt(block) + 4.0f);
    CHECK(std::equal(in.begin() + 2 * size, in.end(), out.begin() + 2 * size));
  }
}

}  // namespace
}  // namespace spillway::rotate_test
