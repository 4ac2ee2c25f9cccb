// bf16 products by matrix units as linear() and linear_gated() have them: where a task multiplies
// by several tiles of outputs, the bits are those of one tile at a time. (linear_test.cc, which
// this program runs as well, holds both against the definition.)
#include "kernels/cpu/gemm_tiles.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/packed_matrix.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"

namespace spillway::gemm_tiles_test {
namespace {

using test::bytes_of;
using test::PackedMatrix;
using test::random_floats;

// More activations than kCachedBytes (cpu/products.h), and at least eight tiles for each thread.
constexpr int64_t kRows = 530, kInputs = 1024, kOutputs = 520, kGatedOutputs = 512;
constexpr int64_t kBlockRows = 96;  // One block, by one tile at a time

struct Products {
  Products() : stream(device->new_stream("test")) {}

  ConstMatrixView rows(int64_t first, int64_t count) {
    return dense_matrix(in.data() + static_cast<size_t>(first * kInputs) * sizeof(uint16_t),
                        DType::kBF16, count, kInputs);
  }
  std::vector<float> plain(int64_t first, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count * kOutputs));
    linear(*stream, {.in = rows(first, count),
                     .weight = weights.matrix(),
                     .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                         count, kOutputs)});
    CHECK(stream->record().wait().ok());
    return out;
  }
  std::vector<uint16_t> gated(int64_t first, int64_t count) {
    std::vector<uint16_t> inner(static_cast<size_t>(count * 2 * kGatedOutputs));
    const MatrixView out =
        linear_gated(*stream, {.in = rows(first, count),
                               .weight = gate_and_up.matrix(),
                               .activation = Activation::kSilu,
                               .inner = dense_matrix(reinterpret_cast<std::byte*>(inner.data()),
                                                     DType::kBF16, count, 2 * kGatedOutputs)});
    CHECK(stream->record().wait().ok());
    std::vector<uint16_t> found;
    for (int64_t row = 0; row < count; ++row) {
      const auto* const at = reinterpret_cast<const uint16_t*>(out.row(row));
      found.insert(found.end(), at, at + kGatedOutputs);
    }
    return found;
  }

  std::unique_ptr<Device> device = open_cpu_device(1, CpuMatmul::kTiles).value();
  std::unique_ptr<Stream> stream;
  std::vector<std::byte> in = bytes_of(DType::kBF16, random_floats(kRows* kInputs, 1));
  PackedMatrix weights{device->matrix_layout(Format::kBF16),
                       Format::kBF16,
                       random_floats(kOutputs* kInputs, 2),
                       kOutputs,
                       kInputs,
                       128};
  PackedMatrix gate_and_up{device->matrix_layout(Format::kBF16),
                           Format::kBF16,
                           random_floats(2 * kGatedOutputs * kInputs, 3),
                           2 * kGatedOutputs,
                           kInputs,
                           2 * kGatedOutputs};
};

template <class Multiply>
void check_blocks(const Multiply& multiply) {
  const auto whole = multiply(0, kRows);
  auto in_blocks = whole;
  in_blocks.clear();
  for (int64_t row = 0; row < kRows; row += kBlockRows) {
    const auto part = multiply(row, std::min(kBlockRows, kRows - row));
    in_blocks.insert(in_blocks.end(), part.begin(), part.end());
  }
  CHECK(whole == in_blocks);
}

TEST_CASE("tasks of several tiles of outputs have the bits of one tile at a time") {
  const uint64_t before = test::emulated_tile_instructions();
  Products products;
  check_blocks([&](int64_t first, int64_t count) { return products.plain(first, count); });
  check_blocks([&](int64_t first, int64_t count) { return products.gated(first, count); });
  CHECK((test::emulated_tile_instructions() > before) == !test::has_tile_instructions());
}

}  // namespace
}  // namespace spillway::gemm_tiles_test
