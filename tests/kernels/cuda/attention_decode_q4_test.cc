// Decode steps over a 4-bit cache on tensor cores, by numbers of query heads that share a KV head
// and by rows that end anywhere in a split: what the conformance tests (kernels/attention_test.cc)
// have one of each of.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/ops.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_decode_q4_test {
namespace {

using test::DeviceArray;

struct Case {
  int64_t heads, kv_heads, head_size;
};

// A decode step of one sequence that has `rows` rows with its own. `value`: what the first number
// of the value of row `marked` is, of KV head 0.
class Step {
 public:
  Step(const Case& c, int64_t rows, int64_t marked = -1, float value = 0)
      : case_(c),
        rows_(rows),
        width_((c.heads + 2 * c.kv_heads) * c.head_size),
        device_(open_cuda_device(0).value()),
        stream_(device_->new_stream("test")) {
    const KvLayout layout{c.kv_heads, c.head_size, Format::kQ4};
    // Bytes behind the last row are anything: here NaN, were they read as numbers.
    std::vector<std::byte> cache(layout.sequence_bytes(rows), std::byte{0xff});
    const auto head_size = static_cast<size_t>(c.head_size);
    for (int64_t row = 0; row + 1 < rows; ++row) {
      for (int64_t head = 0; head < c.kv_heads; ++head) {
        const int64_t block = row / kKvBlockRows;
        std::byte* const key = cache.data() + layout.run_offset(block, head) +
                               static_cast<size_t>(row % kKvBlockRows) * layout.row_bytes();
        auto numbers = test::random_floats(2 * c.head_size,
                                           static_cast<uint64_t>(row * c.kv_heads + head + 1000));
        if (row == marked && head == 0) numbers[head_size] = value;
        const std::span<const float> both(numbers);
        pack_quantized_row(Format::kQ4, both.first(head_size), key);
        pack_quantized_row(Format::kQ4, both.last(head_size), key + layout.value_offset());
      }
    }
    qkv_ = test::random_floats(width_, 7);
    for (int64_t i = 0; i < c.heads * c.head_size; ++i) qkv_[static_cast<size_t>(i)] *= 4;
    const DeviceArray<std::byte> there(*device_, *stream_, cache);
    const DeviceArray<float> qkv(*device_, *stream_, qkv_),
        out(*device_, *stream_, std::vector<float>(static_cast<size_t>(c.heads * c.head_size)));
    const std::vector<AttentionItem> items = {{0, 1, rows - 1, there.data()}};
    attention(*stream_, {.qkv = qkv.matrix(1, width_),
                         .items = items,
                         .heads = c.heads,
                         .kv = layout,
                         .out = out.matrix(1, c.heads * c.head_size)});
    out_ = out.read();
    cache_ = there.read();
  }

  std::span<const float> out(int64_t head) const {
    return std::span(out_).subspan(static_cast<size_t>(head * case_.head_size),
                                   static_cast<size_t>(case_.head_size));
  }
  // By the definition, over the rows as they are in the cache.
  std::vector<float> expected(int64_t head) const {
    const KvLayout layout{case_.kv_heads, case_.head_size, Format::kQ4};
    const int64_t kv_head = head / (case_.heads / case_.kv_heads);
    scalar::Matrix keys, values;
    std::vector<float> numbers(static_cast<size_t>(case_.head_size));
    for (int64_t row = 0; row < rows_; ++row) {
      const std::byte* const key = cache_.data() + layout.run_offset(row / kKvBlockRows, kv_head) +
                                   static_cast<size_t>(row % kKvBlockRows) * layout.row_bytes();
      unpack_quantized_row(Format::kQ4, key, numbers);
      keys.insert(keys.end(), numbers.begin(), numbers.end());
      unpack_quantized_row(Format::kQ4, key + layout.value_offset(), numbers);
      values.insert(values.end(), numbers.begin(), numbers.end());
    }
    const auto found =
        scalar::attend(qkv_.data() + head * case_.head_size, keys, values, rows_, case_.head_size);
    return {found.begin(), found.end()};
  }

 private:
  Case case_;
  int64_t rows_, width_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<float> qkv_, out_;
  std::vector<std::byte> cache_;
};

TEST_CASE("a decode step over 4-bit rows agrees with its definition") {
  const int64_t head_size = GENERATE(64, 128);
  const Case c = {GENERATE(1, 3, 4, 7, 8, 12) * 2, 2, head_size};
  for (const int64_t rows : {1, 2, 16, 17, 33, 255, 256, 257, 530}) {
    if (rows > 257 && c.heads > 8 && !test::thorough()) continue;
    const Step step(c, rows);
    for (int64_t head = 0; head < c.heads; ++head) {
      INFO(c.heads << " heads of " << head_size << ", " << rows << " rows, head " << head);
      REQUIRE(test::relative_error(step.out(head), step.expected(head)) < 5e-5);
    }
  }
}

// A group with a number that is not finite is NaN (base/quantized.h).
TEST_CASE("damage in a 4-bit row shows in the columns of its group, and only there") {
  const Case c{8, 2, 128};
  const Step step(c, 300, 270, std::numeric_limits<float>::infinity());
  for (int64_t head = 0; head < c.heads; ++head) {
    const auto out = step.out(head);
    for (size_t i = 0; i < out.size(); ++i) {
      INFO("head " << head << " column " << i);
      REQUIRE(std::isnan(out[i]) == (head < 4 && i < 64));
    }
  }
}

}  // namespace
}  // namespace spillway::attention_decode_q4_test
