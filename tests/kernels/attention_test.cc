// Attention of prompts and decode steps, on every device, against its scalar definition.
//
// SPILLWAY_EMULATION_SEED: 1 2
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/ops.h"
#include "tests/support/paged_attention.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_test {
namespace {

using test::DeviceArray;
using test::random_floats;
using test::relative_error;

struct AttentionCase {
  int64_t heads, kv_heads, head_size;
};

// An op's output in any format, to and fro.
class Output {
 public:
  Output(Device& device, Stream& stream, DType dtype, int64_t rows, int64_t columns)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        there_(device, stream,
               std::vector<std::byte>(static_cast<size_t>(rows * columns) * dtype_bytes(dtype))) {}
  MatrixView matrix() const { return dense_matrix(there_.data(), dtype_, rows_, columns_); }
  std::vector<float> read() const { return test::floats_of(dtype_, there_.read()); }

 private:
  DType dtype_;
  int64_t rows_, columns_;
  DeviceArray<std::byte> there_;
};

// Runs prompts and then two decode steps of all, against the definition, over rows as the cache
// keeps them. `longest`: one of the prompts, where the device is slow.
void check_attention(Device& device, const AttentionCase& c, Format kv_format, DType out_dtype,
                     double error, int64_t longest = 35) {
  const auto stream = device.new_stream("test");
  const KvLayout layout{c.kv_heads, c.head_size, kv_format};
  std::vector<int64_t> lengths = {1, 16, longest, 3};
  if (test::thorough()) lengths = {1, 16, 97, 3, 130, 64};
  const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_size;
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> caches;
  std::vector<std::vector<float>> history(lengths.size());  // qkv rows of each sequence
  for (int64_t length : lengths) {
    caches.push_back(std::make_unique<DeviceArray<std::byte>>(
        device, *stream, std::vector<std::byte>(layout.sequence_bytes(length + 2))));
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<AttentionItem> items;
    int64_t tokens = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int64_t count = step == 0 ? lengths[s] : 1;
      const int64_t position = step == 0 ? 0 : lengths[s] + step - 1;
      items.push_back({tokens, count, position, caches[s]->data()});
      tokens += count;
    }
    const auto qkv = random_floats(tokens * width, 20 + static_cast<uint64_t>(step));
    const DeviceArray<float> qkv_there(device, *stream, qkv);
    const Output out_there(device, *stream, out_dtype, tokens, c.heads * c.head_size);
    test::attention_both_ways(device, *stream,
                              {.qkv = qkv_there.matrix(tokens, width),
                               .items = items,
                               .heads = c.heads,
                               .kv = layout,
                               .out = out_there.matrix()});
    const std::vector<float> out = out_there.read();
    for (size_t s = 0; s < lengths.size(); ++s) {
      const float* first = qkv.data() + items[s].first_row * width;
      history[s].insert(history[s].end(), first, first + items[s].tokens * width);
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t t = 0; t < items[s].tokens; ++t) {
        const int64_t rows = items[s].position + t + 1;
        for (int64_t head = 0; head < c.heads; ++head) {
          scalar::Matrix keys, values;
          const int64_t kv_head = head / (c.heads / c.kv_heads);
          for (int64_t r = 0; r < rows; ++r) {
            const float* row = history[s].data() + r * width;
            const float* k = row + (c.heads + kv_head) * c.head_size;
            const float* v = k + c.kv_heads * c.head_size;
            const scalar::Matrix key = test::cached_row(kv_format, {k, k + c.head_size});
            const scalar::Matrix value = test::cached_row(kv_format, {v, v + c.head_size});
            keys.insert(keys.end(), key.begin(), key.end());
            values.insert(values.end(), value.begin(), value.end());
          }
          const float* q = history[s].data() + (rows - 1) * width + head * c.head_size;
          const auto expected = scalar::attend(q, keys, values, rows, c.head_size);
          const float* got = out.data() + ((items[s].first_row + t) * c.heads + head) * c.head_size;
          INFO("step " << step << " sequence " << s << " token " << t << " head " << head);
          REQUIRE(relative_error({got, expected.size()}, expected) < error);
        }
      }
    }
  }
}

TEST_CASE("attention agrees with its definition") {
  const auto c =
      GENERATE(AttentionCase{2, 2, 64}, AttentionCase{3, 3, 5}, AttentionCase{1, 1, 80},
               AttentionCase{4, 2, 128}, AttentionCase{6, 1, 20}, AttentionCase{1, 1, 181},
               AttentionCase{2, 1, 256}, AttentionCase{14, 2, 64}, AttentionCase{3, 1, 128},
               AttentionCase{5, 1, 80}, AttentionCase{8, 2, 64});
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", heads " << c.heads << " kv " << c.kv_heads << " size "
                        << c.head_size);
    for (const Format format : kFormats) {
      if (!format_traits(format).kv_cache) continue;
      INFO("KV " << format_name(format));
      check_attention(*device, c, format, DType::kF32, test::attention_error(format));
    }
  }
}

// A softmax that takes the largest of NaN and a number, or the exponential of NaN as 0, would leave
// the number out and answer.
TEST_CASE("NaN in a query or a key stays NaN") {
  constexpr int64_t kHeads = 2, kSize = 16, kPrompt = 70;
  constexpr int64_t kWidth = 3 * kHeads * kSize;
  const KvLayout layout{kHeads, kSize, Format::kF32};
  const bool in_key = GENERATE(false, true);
  const int64_t bad = GENERATE(66, 70);  // Of the prompt, or the decode step's own
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", NaN in " << (in_key ? "the key" : "the query") << " of row " << bad);
    const auto stream = device->new_stream("test");
    auto qkv = random_floats((kPrompt + 1) * kWidth, 3);
    qkv[static_cast<size_t>(bad * kWidth + (in_key ? kHeads * kSize : 0) + 5)] = std::nanf("");
    const DeviceArray<std::byte> cache(*device, *stream,
                                       std::vector<std::byte>(layout.sequence_bytes(kPrompt + 1)));
    const auto run = [&](int64_t position, int64_t tokens) {
      const float* first = qkv.data() + position * kWidth;
      const DeviceArray<float> there(*device, *stream,
                                     std::vector<float>(first, first + tokens * kWidth));
      const Output out(*device, *stream, DType::kF32, tokens, kHeads * kSize);
      const AttentionItem item{0, tokens, position, cache.data()};
      test::attention_both_ways(*device, *stream,
                                {.qkv = there.matrix(tokens, kWidth),
                                 .items = std::span(&item, 1),
                                 .heads = kHeads,
                                 .kv = layout,
                                 .out = out.matrix()});
      const std::vector<float> found = out.read();
      for (int64_t row = 0; row < tokens; ++row) {
        // Of a key all later rows know; the other head knows nothing.
        const bool expected = in_key ? position + row >= bad : position + row == bad;
        const float* heads = found.data() + row * kHeads * kSize;
        INFO("position " << position + row);
        CHECK(
            std::all_of(heads, heads + kSize, [&](float x) { return std::isnan(x) == expected; }));
        CHECK(
            std::none_of(heads + kSize, heads + 2 * kSize, [](float x) { return std::isnan(x); }));
      }
    };
    run(0, kPrompt);
    run(kPrompt, 1);
  }
}

// Heads that share rows are multiplied in tiles of two, three and four, one alone row by row.
TEST_CASE("a decode step's head has the same bits whoever shares its keys, on the CPU") {
  constexpr int64_t kPrompt = 43;
  const auto heads = static_cast<int64_t>(GENERATE(2, 3, 4, 5, 7, 8));
  const auto size = static_cast<int64_t>(GENERATE(64, 80, 128));
  const auto device = std::move(open_cpu_device(2).value());
  const auto stream = device->new_stream("test");
  const auto step = [&](const std::vector<float>& qkv, int64_t queries, Format format) {
    const KvLayout layout{1, size, format};
    const int64_t width = (queries + 2) * size;
    const DeviceArray<std::byte> cache(*device, *stream,
                                       std::vector<std::byte>(layout.sequence_bytes(kPrompt + 1)));
    const DeviceArray<float> there(*device, *stream, qkv);
    const Output out(*device, *stream, DType::kF32, kPrompt + 1, queries * size);
    for (const AttentionItem& item : {AttentionItem{0, kPrompt, 0, cache.data()},
                                      AttentionItem{kPrompt, 1, kPrompt, cache.data()}}) {
      attention(*stream, {.qkv = there.matrix(kPrompt + 1, width),
                          .items = std::span(&item, 1),
                          .heads = queries,
                          .kv = layout,
                          .out = out.matrix()});
    }
    const std::vector<float> all = out.read();
    return std::vector<float>(all.end() - queries * size, all.end());
  };
  const auto qkv = random_floats((kPrompt + 1) * (heads + 2) * size, 31);
  for (const Format format : kFormats) {
    if (!format_traits(format).kv_cache) continue;
    INFO(heads << " heads of " << size << ", KV " << format_name(format));
    const std::vector<float> together = step(qkv, heads, format);
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<float> own;
      for (int64_t row = 0; row <= kPrompt; ++row) {
        const float* const first = qkv.data() + row * (heads + 2) * size;
        own.insert(own.end(), first + head * size, first + (head + 1) * size);
        own.insert(own.end(), first + heads * size, first + (heads + 2) * size);
      }
      const std::vector<float> shared(together.begin() + head * size,
                                      together.begin() + (head + 1) * size);
      INFO("head " << head);
      CHECK(step(own, 1, format) == shared);
    }
  }
}

// More rows than one block of a device takes.
TEST_CASE("a decode step over a long cache agrees with its definition") {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kSize = 16;
  const int64_t rows = GENERATE(255, 256, 700);  // Before the step
  const float spread = GENERATE(1.0f, 40.0f);    // Scores that differ by hundreds, too
  const int64_t width = (kHeads + 2 * kKvHeads) * kSize;
  const KvLayout layout{kKvHeads, kSize, Format::kF32};
  const auto keys = random_floats(rows * kKvHeads * kSize, 5);
  const auto values = random_floats(rows * kKvHeads * kSize, 6);
  auto qkv = random_floats(width, 7);
  for (int64_t i = 0; i < kHeads * kSize; ++i) qkv[static_cast<size_t>(i)] *= spread;
  std::vector<std::byte> filled(layout.sequence_bytes(rows + 1));
  const auto row_of = [&](const std::vector<float>& from, int64_t row, int64_t head) {
    const float* first = from.data() + (row * kKvHeads + head) * kSize;
    return scalar::Matrix(first, first + kSize);
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < kKvHeads; ++head) {
      const size_t at = layout.run_offset(row / kKvBlockRows, head) +
                        static_cast<size_t>(row % kKvBlockRows) * layout.row_bytes();
      std::memcpy(filled.data() + at, row_of(keys, row, head).data(), layout.row_bytes());
      std::memcpy(filled.data() + at + layout.value_offset(), row_of(values, row, head).data(),
                  layout.row_bytes());
    }
  }
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", " << rows << " rows, queries times " << spread);
    const auto stream = device->new_stream("test");
    const DeviceArray<std::byte> cache(*device, *stream, filled);
    const DeviceArray<float> qkv_there(*device, *stream, qkv);
    const Output out_there(*device, *stream, DType::kF32, 1, kHeads * kSize);
    const AttentionItem item{0, 1, rows, cache.data()};
    test::attention_both_ways(*device, *stream,
                              {.qkv = qkv_there.matrix(1, width),
                               .items = std::span(&item, 1),
                               .heads = kHeads,
                               .kv = layout,
                               .out = out_there.matrix()});
    const std::vector<float> out = out_there.read();
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t kv_head = head / (kHeads / kKvHeads);
      scalar::Matrix all_keys, all_values;
      for (int64_t row = 0; row <= rows; ++row) {
        const float* own = qkv.data() + (kHeads + kv_head) * kSize;
        const scalar::Matrix key =
            row < rows ? row_of(keys, row, kv_head) : scalar::Matrix(own, own + kSize);
        own += kKvHeads * kSize;
        const scalar::Matrix value =
            row < rows ? row_of(values, row, kv_head) : scalar::Matrix(own, own + kSize);
        all_keys.insert(all_keys.end(), key.begin(), key.end());
        all_values.insert(all_values.end(), value.begin(), value.end());
      }
      const auto expected =
          scalar::attend(qkv.data() + head * kSize, all_keys, all_values, rows + 1, kSize);
      INFO("head " << head);
      CHECK(relative_error({out.data() + head * kSize, expected.size()}, expected) < 1e-5 * spread);
    }
  }
}

// The formats that linear layers take; tensor cores round what they multiply, too. A block of the
// device takes 64 tokens.
TEST_CASE("attention with narrow outputs agrees with its definition", "[sanitizer]") {
  const auto c =
      GENERATE(AttentionCase{2, 2, 64}, AttentionCase{1, 1, 80}, AttentionCase{4, 2, 128},
               AttentionCase{3, 1, 16}, AttentionCase{2, 1, 20}, AttentionCase{1, 1, 192});
  for (const auto& device : test::test_devices()) {
    INFO(device->name() << ", heads " << c.heads << " kv " << c.kv_heads << " size "
                        << c.head_size);
    check_attention(*device, c, Format::kF32, DType::kBF16, 1.0 / 32, 70);
    check_attention(*device, c, Format::kF16, DType::kF16, 1.0 / 256, 70);
  }
}

// Snap's scores of what the last `queries` gave (kernels/ops.h).
void smooth(KvScore score, int64_t queries, int64_t heads, std::span<double> scores) {
  const std::vector<double> before(scores.begin(), scores.end() - queries);
  double total = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    scores[i] = 0;
    for (size_t j = i < 2 ? 0 : i - 2; j < std::min(i + 3, before.size()); ++j) {
      scores[i] += before[j] / 5;
    }
    total += scores[i];
  }
  if (score != KvScore::kSnapMax) return;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i < before.size()) {
      scores[i] = std::max(scores[i], total / static_cast<double>(before.size()));
    }
    scores[i] *= static_cast<double>(queries * heads);
  }
}

// A budget that keeps every position shows the sums of all.
TEST_CASE("the scores of a prompt with narrow outputs are the sums of its weights", "[sanitizer]") {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kSize = 64, kRecent = 5;
  const int64_t tokens = GENERATE(7, 33, 70);
  const int64_t width = (kHeads + 2 * kKvHeads) * kSize;
  const auto score = GENERATE(KvScore::kAttention, KvScore::kSnapMean, KvScore::kSnapMax);
  const KvBudget budget{kRecent, tokens, true, 0, score};
  // Snap: of the queries the last 32, or as many as are recent where a budget keeps fewer.
  const int64_t queries = score == KvScore::kAttention ? tokens
                          : tokens + kRecent < 32      ? kRecent
                                                       : 32;
  const auto qkv = random_floats(tokens * width, 77);
  std::vector<double> sums(static_cast<size_t>(kKvHeads * tokens));
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t kv_head = head / (kHeads / kKvHeads);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<double> weights;
      double most = -1e30, all = 0;
      for (int64_t r = 0; r <= t; ++r) {
        double dot = 0;
        for (int64_t i = 0; i < kSize; ++i) {
          dot += double{qkv[static_cast<size_t>(t * width + head * kSize + i)]} *
                 qkv[static_cast<size_t>(r * width + (kHeads + kv_head) * kSize + i)];
        }
        weights.push_back(dot / 8);  // sqrt(64)
        most = std::max(most, weights.back());
      }
      for (double& weight : weights) all += weight = std::exp(weight - most);
      if (t < tokens - queries) continue;
      for (int64_t r = 0; r <= t; ++r) {
        const double weight = weights[static_cast<size_t>(r)] / all;
        double& sum = sums[static_cast<size_t>(kv_head * tokens + r)];
        sum = score == KvScore::kSnapMax ? std::max(sum, weight) : sum + weight;
      }
    }
  }
  if (score != KvScore::kAttention) {
    for (int64_t head = 0; head < kKvHeads; ++head) {
      smooth(
          score, queries, kHeads / kKvHeads,
          std::span(sums).subspan(static_cast<size_t>(head * tokens), static_cast<size_t>(tokens)));
    }
  }
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    const KvLayout layout{kKvHeads, kSize, Format::kF32};
    const KvStateLayout states{kKvHeads, budget};
    const DeviceArray<std::byte> cache(*device, *stream,
                                       std::vector<std::byte>(layout.sequence_bytes(3 * tokens)));
    const DeviceArray<std::byte> state(*device, *stream, std::vector<std::byte>(states.bytes()));
    const DeviceArray<float> qkv_there(*device, *stream, qkv);
    const bool cpu = device->kind() == DeviceKind::kCpu;
    for (const DType out : {DType::kBF16, cpu ? DType::kF32 : DType::kF16}) {
      INFO(device->name() << ", " << tokens << " tokens, out " << dtype_name(out));
      const Output out_there(*device, *stream, out, tokens, kHeads * kSize);
      const AttentionItem item{0, tokens, 0, cache.data(), budget, state.data()};
      test::attention_both_ways(*device, *stream,
                                {.qkv = qkv_there.matrix(tokens, width),
                                 .items = std::span(&item, 1),
                                 .heads = kHeads,
                                 .kv = layout,
                                 .out = out_there.matrix()});
      std::vector<std::byte> got = state.read();
      for (int64_t head = 0; head < kKvHeads; ++head) {
        const KvHeadState one = states.head(got.data(), head);
        for (int64_t position = 0; position < tokens; ++position) {
          const bool recent = position >= tokens - kRecent;
          const int64_t slot = recent ? position % budget.ring() : budget.ring() + position;
          if (!recent) REQUIRE(one.positions[position] == position);
          INFO("head " << head << " position " << position);
          // The CPU computes in float32 whatever it writes; tensor cores multiply narrow numbers.
          CHECK(one.scores[slot] == Approx(sums[static_cast<size_t>(head * tokens + position)])
                                        .epsilon(cpu ? 2e-6 : 0.03));
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::attention_test
