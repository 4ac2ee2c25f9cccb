// Decode steps over so many rows that these are cut into parts.
#include "kernels/cpu/attention_parts.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/attention_shape.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/scalar_ops.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_parts_test {
namespace {

using test::random_floats;
using Model = test::AttentionShape;

// Few KV heads are spread over threads, sixteen are not; forty that share one take two shares.
const Model kModels[] = {{4, 2, 16, Format::kF32},
                         {4, 2, 64, Format::kQ8, DType::kBF16},
                         {2, 1, 64, Format::kQ4},
                         {16, 16, 8, Format::kF16, DType::kF16},
                         {40, 1, 8, Format::kBF16}};

// Sequences of one layer on a CPU device with so many threads.
class Layer {
 public:
  Layer(int threads, const Model& model, std::vector<int64_t> prompts, int64_t steps)
      : device_(open_cpu_device(threads).value()),
        stream_(device_->new_stream("test")),
        model_(model),
        prompts_(std::move(prompts)) {
    for (const int64_t prompt : prompts_) {
      qkv_.push_back(random_floats((prompt + steps) * model.width(), 3));
      caches_.emplace_back(model.layout().sequence_bytes(prompt + steps), std::byte{0xff});
    }
    for (size_t s = 0; s < prompts_.size(); ++s) {
      const AttentionItem item{
          .tokens = prompts_[s], .kv = caches_[s].data(), .prompt = prompts_[s]};
      call({item}, {s}, prompts_[s]);
    }
  }

  std::vector<float>& rows(size_t sequence) { return qkv_[sequence]; }
  std::vector<std::byte>& cache(size_t sequence) { return caches_[sequence]; }

  // `tokens` of every sequence behind its prompt and `done` steps: the outputs of one after
  // another's.
  std::vector<std::byte> step(int64_t done, int64_t tokens) {
    std::vector<AttentionItem> items;
    std::vector<size_t> sequences;
    for (size_t s = 0; s < prompts_.size(); ++s) {
      items.push_back({.first_row = static_cast<int64_t>(s) * tokens,
                       .tokens = tokens,
                       .position = prompts_[s] + done,
                       .kv = caches_[s].data()});
      sequences.push_back(s);
    }
    return call(items, sequences, tokens);
  }

 private:
  std::vector<std::byte> call(const std::vector<AttentionItem>& items,
                              const std::vector<size_t>& sequences, int64_t tokens) {
    const int64_t all = tokens * static_cast<int64_t>(items.size());
    std::vector<float> in;
    for (size_t i = 0; i < items.size(); ++i) {
      const auto from = qkv_[sequences[i]].begin() + items[i].position * model_.width();
      in.insert(in.end(), from, from + tokens * model_.width());
    }
    std::vector<std::byte> out(static_cast<size_t>(all * model_.out_width()) *
                               dtype_bytes(model_.out));
    attention(*stream_, {.qkv = dense_matrix(reinterpret_cast<std::byte*>(in.data()), DType::kF32,
                                             all, model_.width()),
                         .items = items,
                         .heads = model_.heads,
                         .kv = model_.layout(),
                         .out = dense_matrix(out.data(), model_.out, all, model_.out_width())});
    REQUIRE(stream_->record().wait().ok());
    return out;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  const Model model_;
  const std::vector<int64_t> prompts_;
  std::vector<std::vector<float>> qkv_;
  std::vector<std::vector<std::byte>> caches_;
};

TEST_CASE("a decode step over rows in parts agrees with its definition") {
  const int64_t prompt = GENERATE(1024, 2100);
  for (const Model& model : kModels) {
    INFO(model.name() << ", " << prompt << " rows before");
    Layer layer(2, model, {prompt}, 1);
    const auto out = test::floats_of(model.out, layer.step(0, 1));
    const int64_t size = model.head_size, rows = prompt + 1;
    const double error = model.out == DType::kF32 ? test::attention_error(model.format) : 1.0 / 64;
    for (int64_t head = 0; head < model.heads; ++head) {
      const int64_t kv_head = head / (model.heads / model.kv_heads);
      scalar::Matrix keys, values;
      for (int64_t row = 0; row < rows; ++row) {
        const float* const k =
            layer.rows(0).data() + row * model.width() + (model.heads + kv_head) * size;
        const float* const v = k + model.kv_heads * size;
        const auto key = test::cached_row(model.format, {k, k + size});
        const auto value = test::cached_row(model.format, {v, v + size});
        keys.insert(keys.end(), key.begin(), key.end());
        values.insert(values.end(), value.begin(), value.end());
      }
      const float* const q = layer.rows(0).data() + prompt * model.width() + head * size;
      const auto expected = scalar::attend(q, keys, values, rows, size);
      INFO("head " << head);
      REQUIRE(test::relative_error({out.data() + head * size, expected.size()}, expected) < error);
    }
  }
}

TEST_CASE("its bits depend neither on threads, nor on sequences beside it, nor on a draft") {
  constexpr int64_t kSteps = 6;
  const int64_t prompt = GENERATE(1021, 2046);  // The steps cross the end of a part.
  if (!test::thorough() && prompt != 1021) return;
  for (const Model& model : kModels) {
    INFO(model.name() << ", " << prompt << " rows before");
    std::vector<std::byte> expected, cache;
    {
      Layer alone(4, model, {prompt}, kSteps);
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto one = alone.step(step, 1);
        expected.insert(expected.end(), one.begin(), one.end());
      }
      cache = alone.cache(0);
    }
    for (const int threads : {1, 7}) {
      INFO(threads << " threads");
      Layer drafted(threads, model, {prompt}, kSteps);
      CHECK(drafted.step(0, kSteps) == expected);
      CHECK(drafted.cache(0) == cache);
    }
    Layer beside(2, model, {40, prompt, 1500, prompt}, kSteps);
    const auto found = beside.step(0, kSteps);
    const size_t each = expected.size();
    CHECK(std::equal(expected.begin(), expected.end(), found.begin() + each));
    CHECK(std::equal(expected.begin(), expected.end(), found.begin() + 3 * each));
  }
}

TEST_CASE("more parts than there is room for are computed in turn, with the same bits") {
  // 32 sequences of 33 parts, 4 heads of 256: more than kSpreadPartsBytesMax.
  constexpr int64_t kSequences = 32, kRows = 33 * cpu::kPartRows - 1, kSize = 256, kHeads = 4;
  static_assert(kSequences * 33 * kHeads * kSize * sizeof(float) > cpu::kSpreadPartsBytesMax);
  const KvLayout layout{1, kSize, Format::kQ4};
  // All sequences have the same blocks but for the last, in which their own row lies.
  const int64_t blocks = kv_blocks(kRows + 1);
  const size_t block_bytes = layout.block_bytes();
  std::vector<std::byte> cache(layout.sequence_bytes(kRows + 1));
  const auto noise = random_floats(64 * kSize, 5);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t row = 0; row < 2 * kKvBlockRows; ++row) {
      pack_quantized_row(Format::kQ4, {noise.data() + (7 * block + row) % 64 * kSize, kSize},
                         cache.data() + static_cast<size_t>(block) * block_bytes +
                             static_cast<size_t>(row) * layout.row_bytes());
    }
  }
  const int64_t width = (kHeads + 2) * kSize;
  const auto one = random_floats(width, 9);
  const auto run = [&](int64_t sequences) {
    const auto device = open_cpu_device(8).value();
    const auto stream = device->new_stream("test");
    std::vector<float> qkv, out(static_cast<size_t>(sequences * kHeads * kSize));
    std::vector<AttentionItem> items;
    std::vector<std::vector<std::byte>> last;
    std::vector<std::vector<std::byte*>> tables;
    for (int64_t s = 0; s < sequences; ++s) {
      last.emplace_back(cache.end() - static_cast<int64_t>(block_bytes), cache.end());
      auto& table = tables.emplace_back();
      for (int64_t block = 0; block + 1 < blocks; ++block) {
        table.push_back(cache.data() + static_cast<size_t>(block) * block_bytes);
      }
      table.push_back(last.back().data());
      qkv.insert(qkv.end(), one.begin(), one.end());
      items.push_back(
          {.first_row = s, .tokens = 1, .position = kRows, .kv = KvBlocks(table.data())});
    }
    const auto view = [&](std::vector<float>& m, int64_t columns) {
      return dense_matrix(reinterpret_cast<std::byte*>(m.data()), DType::kF32, sequences, columns);
    };
    attention(*stream, {.qkv = view(qkv, width),
                        .items = items,
                        .heads = kHeads,
                        .kv = layout,
                        .out = view(out, kHeads * kSize)});
    REQUIRE(stream->record().wait().ok());
    return out;
  };
  const auto expected = run(1), found = run(kSequences);
  for (int64_t s = 0; s < kSequences; ++s) {
    INFO("sequence " << s);
    CHECK(std::equal(expected.begin(), expected.end(), found.begin() + s * kHeads * kSize));
  }
}

TEST_CASE("NaN in one part is NaN in the whole") {
  const Model model{2, 1, 16, Format::kF32};
  for (const int64_t bad : {3, 1500, 2100}) {
    for (const int threads : {1, 4}) {
      Layer layer(threads, model, {2100}, 1);
      // The key in a slot; the last one is the step's own.
      layer.rows(0)[static_cast<size_t>(bad * model.width() + 2 * 16)] = NAN;
      const KvLayout kv = model.layout();
      const float nan = NAN;
      std::memcpy(layer.cache(0).data() + kv.run_offset(bad / kKvBlockRows, 0) +
                      static_cast<size_t>(bad % kKvBlockRows) * kv.row_bytes(),
                  &nan, sizeof(nan));
      for (const float number : test::floats_of(DType::kF32, layer.step(0, 1))) {
        CHECK(std::isnan(number));
      }
    }
  }
}

TEST_CASE("parts are joined whatever their highest scores are") {
  // Scores 1, 3 | 200 | 2, with values 1, 2 | 3 | 4.
  const auto e = [](double x) { return static_cast<float>(std::exp(x)); };
  cpu::StepPart all{3, e(-2) + 1};
  float sums[2] = {e(-2) + 2, 1};
  const float low[2] = {4, 0}, high[2] = {3, 5};
  SECTION("all count") {
    cpu::join_part({2, 1}, low, 2, &all, sums);
    CHECK(all.highest == 3);
    CHECK(all.total == Approx(e(-2) + 1 + e(-1)));
    CHECK(sums[0] == Approx(e(-2) + 2 + 4 * e(-1)));
    CHECK(sums[1] == 1);
  }
  SECTION("one is far above") {
    cpu::join_part({200, 1}, high, 2, &all, sums);
    cpu::join_part({2, 1}, low, 2, &all, sums);
    CHECK(all.highest == 200);
    CHECK(all.total == 1);
    CHECK(sums[0] == 3);
    CHECK(sums[1] == 5);
  }
}

}  // namespace
}  // namespace spillway::attention_parts_test
