// A decode step's bits do not depend on how many KV heads one task takes, nor on which of them.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "tests/support/random_data.h"

namespace spillway::attention_decode_test {
namespace {

// Numbers that are finite in every format, scales and minima of quantised rows included: the upper
// byte of each half word is between 0x34 and 0x37.
std::vector<std::byte> random_cache(size_t bytes) {
  std::vector<std::byte> cache(bytes);
  uint32_t state = 12345;
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 1664525 + 1013904223;
    const uint32_t number = state >> 24;
    cache[i] = static_cast<std::byte>(i % 2 == 0 ? number : 0x34 | (number & 3));
  }
  return cache;
}

struct Step {
  int64_t sequences, rows, heads;
  KvLayout layout;
};

// Outputs of sequences `first` up to `end`, all in one op.
std::vector<float> attend(int threads, const Step& step, std::vector<std::byte>& cache,
                          std::vector<float>& qkv, int64_t first, int64_t end) {
  const auto device = open_cpu_device(threads).value();
  const auto stream = device->new_stream("test");
  const int64_t width = step.heads * step.layout.head_size;
  const int64_t all = width + 2 * step.layout.heads * step.layout.head_size;
  std::vector<float> out(static_cast<size_t>((end - first) * width));
  std::vector<AttentionItem> items;
  const size_t each = step.layout.sequence_bytes(step.rows);
  for (int64_t i = first; i < end; ++i) {
    items.push_back({.first_row = i - first,
                     .tokens = 1,
                     .position = step.rows - 1,
                     .kv = cache.data() + static_cast<size_t>(i) * each});
  }
  auto* const rows = reinterpret_cast<std::byte*>(qkv.data() + first * all);
  attention(*stream, {.qkv = dense_matrix(rows, DType::kF32, end - first, all),
                      .items = items,
                      .heads = step.heads,
                      .kv = step.layout,
                      .out = dense_matrix(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                                          end - first, width)});
  REQUIRE(stream->record().wait().ok());
  return out;
}

TEST_CASE("a decode step's bits do not depend on the KV heads that one task takes together") {
  const Format format = GENERATE(Format::kF32, Format::kBF16, Format::kQ8, Format::kQ4);
  const int64_t group = GENERATE(1, 3, 4), size = GENERATE(64, 128, 96),
                rows = GENERATE(5, 33, 250);
  CAPTURE(format_name(format), group, size, rows);
  // So many sequences that a task of one thread has all eight KV heads, or as many of these as a
  // step takes; a task of four threads has one.
  constexpr int64_t kHeads = 8, kSequences = 16;
  const Step step = {kSequences, rows, kHeads * group, KvLayout{kHeads, size, format}};
  const size_t each = step.layout.sequence_bytes(rows);
  std::vector<std::byte> cache = random_cache(each * kSequences);
  std::vector<float> qkv =
      test::random_floats(kSequences * (step.heads + 2 * kHeads) * size, 7, 0.3f);
  const std::vector<float> together = attend(1, step, cache, qkv, 0, kSequences);
  const int64_t width = step.heads * size;
  for (int64_t i = 0; i < kSequences; i += 5) {
    CAPTURE(i);
    const std::vector<float> alone = attend(4, step, cache, qkv, i, i + 1);
    REQUIRE(std::memcmp(alone.data(), together.data() + i * width, alone.size() * sizeof(float)) ==
            0);
    REQUIRE(std::isfinite(alone.front()));
  }
}

}  // namespace
}  // namespace spillway::attention_decode_test
