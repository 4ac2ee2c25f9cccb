// Attention under limited KV budgets against its definition (tests/support/kept_rows.h): outputs,
// kept positions, their scores, keys and values, after a prompt and every decode step.
//
// SPILLWAY_EMULATION_SEED: 1
#include <catch2/catch.hpp>

#include "kernels/cpu/attention_body.h"
#include "kernels/cpu_scratch.h"
#include "kernels/ops.h"
#include "tests/support/kept_rows.h"
#include "tests/support/paged_attention.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"

namespace spillway::kv_budget_test {
namespace {

using scalar::Matrix;
using test::DeviceArray;
using test::KeptRow;
using test::KeptRows;
using test::random_floats;
using test::relative_error;

struct Shape {
  int64_t heads, kv_heads, head_size;
  int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
};

// One sequence: its cache on the device and its definition by KV head.
struct Case {
  Case(Device& device, Stream& stream, const KvLayout& layout, const KvBudget& kept, int64_t tokens,
       int64_t steps)
      : budget(kept), prompt(tokens) {
    // A guard behind each: nothing may be written there.
    const auto memory = [&](size_t bytes) {
      return std::make_unique<DeviceArray<std::byte>>(
          device, stream, std::vector<std::byte>(bytes + 64, std::byte{0x5a}));
    };
    kv = memory(layout.sequence_bytes(kept.slots(tokens + steps)));
    state = memory(KvStateLayout{layout.heads, kept}.bytes());
    for (int64_t head = 0; head < layout.heads; ++head) heads.emplace_back(kept, kLayer, head);
  }
  static constexpr int64_t kLayer = 3;

  KvBudget budget;
  int64_t prompt;
  std::unique_ptr<DeviceArray<std::byte>> kv, state;
  std::vector<KeptRows> heads;
};

Matrix columns(const Matrix& qkv, const Shape& s, int64_t first_row, int64_t rows, int64_t column) {
  Matrix part;
  for (int64_t r = first_row; r < first_row + rows; ++r) {
    const float* from = qkv.data() + r * s.width() + column * s.head_size;
    part.insert(part.end(), from, from + s.head_size);
  }
  return part;
}

// The definition's outputs of an item, head by head.
std::vector<Matrix> define(Case& c, const Shape& s, Format format, const Matrix& qkv,
                           const AttentionItem& item) {
  std::vector<Matrix> outputs;
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t h = 0; h < s.kv_heads; ++h) {
    const auto part = [&](int64_t column) {
      return columns(qkv, s, item.first_row, item.tokens, column);
    };
    std::vector<Matrix> queries;
    for (int64_t g = 0; g < group; ++g) queries.push_back(part(h * group + g));
    const Matrix k = part(s.heads + h), v = part(s.heads + s.kv_heads + h);
    KeptRows& head = c.heads[static_cast<size_t>(h)];
    const auto round = [&](const Matrix& row) { return test::cached_row(format, row); };
    for (Matrix& out : item.position == 0 ? head.prompt(k, v, queries, s.head_size, round)
                                          : head.step(item.position, round(k), round(v), queries)) {
      outputs.push_back(std::move(out));
    }
  }
  return outputs;
}

void check_kept(Case& c, const KvLayout& layout, int64_t positions) {
  const std::vector<std::byte> kv = c.kv->read();
  std::vector<std::byte> state = c.state->read();
  for (int64_t h = 0; h < layout.heads; ++h) {
    const auto got = test::read_kept_rows(layout, c.budget, positions, kv.data(), state.data(), h);
    KeptRows& defined = c.heads[static_cast<size_t>(h)];
    if (c.budget.scored() && layout.format != Format::kF32) {
      std::vector<int64_t> kept;
      for (const KeptRow& row : got) kept.push_back(row.position);
      defined.follow(kept, test::attention_error(layout.format));
    }
    const std::vector<KeptRow>& want = defined.rows();
    INFO("KV head " << h << " after " << positions << " positions");
    REQUIRE(got.size() == want.size());
    // Millions of rows: an assertion only where it fails.
    const bool scored = c.budget.scored();
    for (size_t i = 0; i < want.size(); ++i) {
      const auto score = Approx(want[i].score).epsilon(test::attention_error(layout.format));
      const bool rows = got[i].position == want[i].position && got[i].key == want[i].key &&
                        got[i].value == want[i].value;
      if (rows && (!scored || got[i].score == score)) continue;
      REQUIRE(got[i].position == want[i].position);
      REQUIRE(got[i].key == want[i].key);
      REQUIRE(got[i].value == want[i].value);
      REQUIRE(got[i].score == score);
    }
  }
  for (const auto* bytes : {&kv, static_cast<const std::vector<std::byte>*>(&state)}) {
    REQUIRE(std::all_of(bytes->end() - 64, bytes->end(),
                        [](std::byte b) { return b == std::byte{0x5a}; }));
  }
}

struct Sequence {
  KvBudget budget;
  int64_t prompt;
};

void check_budgets(Device& device, const Shape& s, Format format,
                   const std::vector<Sequence>& sequences, int64_t steps) {
  const auto stream = device.new_stream("test");
  const KvLayout layout{s.kv_heads, s.head_size, format};
  std::vector<Case> cases;
  for (const Sequence& one : sequences) {
    // A budget that never drops a row is the full one: resolve() sees to that.
    const KvBudget& budget = one.budget;
    const bool limits = budget.full() || budget.recent + budget.kept < one.prompt + steps;
    if (limits) cases.emplace_back(device, *stream, layout, budget, one.prompt, steps);
  }
  for (int64_t step = 0; step <= steps; ++step) {
    std::vector<AttentionItem> items;
    int64_t tokens = 0;
    for (Case& c : cases) {
      const int64_t count = step == 0 ? c.prompt : 1;
      items.push_back({tokens, count, step == 0 ? 0 : c.prompt + step - 1, c.kv->data(), c.budget,
                       c.state->data(), 0, Case::kLayer});
      tokens += count;
    }
    const Matrix qkv = random_floats(tokens * s.width(), 70 + static_cast<uint64_t>(step));
    const DeviceArray<float> qkv_there(device, *stream, qkv),
        out_there(device, *stream, Matrix(static_cast<size_t>(tokens * s.heads * s.head_size)));
    test::attention_both_ways(device, *stream,
                              {.qkv = qkv_there.matrix(tokens, s.width()),
                               .items = items,
                               .heads = s.heads,
                               .kv = layout,
                               .out = out_there.matrix(tokens, s.heads * s.head_size)});
    const Matrix out = out_there.read();
    for (size_t i = 0; i < cases.size(); ++i) {
      Case& c = cases[i];
      INFO("step " << step << ", prompt " << c.prompt << ", recent " << c.budget.recent << ", kept "
                   << c.budget.kept << (c.budget.by_score ? " by score" : ""));
      const std::vector<Matrix> want = define(c, s, format, qkv, items[i]);
      for (int64_t head = 0; head < s.heads; ++head) {
        for (int64_t t = 0; t < items[i].tokens; ++t) {
          const float* got = out.data() + ((items[i].first_row + t) * s.heads + head) * s.head_size;
          const auto size = static_cast<size_t>(s.head_size);
          const double error = relative_error(
              {got, size}, {want[static_cast<size_t>(head)].data() + t * s.head_size, size});
          const double most = test::attention_error(format);
          if (!(error < most)) REQUIRE(error < most);
        }
      }
      check_kept(c, layout, items[i].position + items[i].tokens);
    }
  }
}

TEST_CASE("attention under a limited KV budget agrees with its definition", "[sanitizer][slow]") {
  const auto shape = GENERATE(Shape{2, 2, 64}, Shape{3, 3, 5}, Shape{4, 2, 20});
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  // Where the device is emulated, each format with one shape, but the widest and the narrowest.
  const bool all_shapes = format == Format::kF32 || format == Format::kQ4;
  const int64_t one_shape = format == Format::kF16 ? 64 : format == Format::kBF16 ? 5 : 20;
  if (!test::thorough() && !all_shapes && shape.head_size != one_shape) return;
  INFO("heads " << shape.heads << ", KV heads " << shape.kv_heads << ", size " << shape.head_size
                << ", KV " << format_name(format));
  const std::vector<KvBudget> budgets = {
      {3, 4, true},
      {1, 0, true},
      {1, 1, true},
      {16, 15, true},
      {7, 30, true},
      {40, 20, true},
      {5, 2, false},
      {4, 0, false},
      {17, 16, false},
      {},
      // With protected positions: of which some are generated, and all but one.
      {3, 8, true, 4},
      {7, 20, true, 12},
      {2, 6, true, 5},
      {30, 9, true, 3},
      // At random
      {3, 4, true, 0, KvScore::kRandom, 5},
      {1, 0, true, 0, KvScore::kRandom, 5},
      {7, 30, true, 0, KvScore::kRandom, 6},
      {4, 19, true, 7, KvScore::kRandom, 7},
      // Snap: with a window of queries that lies before the recent positions, too, or is the recent
      // ones, or fewer, or more than is kept beside the first ones.
      {10, 25, true, 0, KvScore::kSnapMean},
      {4, 9, true, 2, KvScore::kSnapMean},
      {40, 12, true, 0, KvScore::kSnapMean},
      {5, 40, true, 20, KvScore::kSnapMean},
      {10, 25, true, 0, KvScore::kSnapMax},
      {4, 9, true, 0, KvScore::kSnapMax},
      {33, 20, true, 3, KvScore::kSnapMax},
      // Snap of the last rows alone, as ratios of a short sequence have it
      {4, 0, true, 0, KvScore::kSnapMean},
      {1, 0, true, 0, KvScore::kSnapMax}};
  const std::vector<int64_t> prompts =
      test::thorough() ? std::vector<int64_t>{1, 5, 31, 97, 200} : std::vector<int64_t>{1, 31, 70};
  std::vector<Sequence> sequences;
  for (const KvBudget& budget : budgets) {
    for (const int64_t prompt : prompts) sequences.push_back({budget, prompt});
  }
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    check_budgets(*device, shape, format, sequences, test::thorough() ? 45 : 13);
  }
}

// A block of a device takes 256 rows of a decode step, and 128 candidates for what is kept.
TEST_CASE("a KV budget of more rows than a block takes agrees with its definition", "[sanitizer]") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    check_budgets(*device, {2, 1, 8}, Format::kF32,
                  {{{100, 290, true}, 400},
                   {{60, 290, true, 131}, 400},
                   {{60, 290, true, 131, KvScore::kRandom, 9}, 400},
                   {{60, 290, true, 131, KvScore::kSnapMax}, 400},
                   {{50, 100, true, 0, KvScore::kSnapMean}, 300}},
                  8);
  }
}

// One sequence with one head of size 8, on a device.
class OneHead {
 public:
  OneHead(Device& device, const KvBudget& kept)
      : device_(device),
        stream_(device.new_stream("test")),
        budget_(kept),
        kv_(device, *stream_, std::vector<std::byte>(layout_.sequence_bytes(kept.slots(100)))),
        state_(device, *stream_, std::vector<std::byte>(KvStateLayout{1, kept}.bytes())) {}

  // `qkv` is [tokens, 24].
  void run(int64_t position, const Matrix& qkv) {
    const int64_t tokens = static_cast<int64_t>(qkv.size()) / 24;
    const DeviceArray<float> in(device_, *stream_, qkv),
        out(device_, *stream_, Matrix(static_cast<size_t>(tokens * 8)));
    const AttentionItem item{0, tokens, position, kv_.data(), budget_, state_.data()};
    test::attention_both_ways(device_, *stream_,
                              {.qkv = in.matrix(tokens, 24),
                               .items = {&item, 1},
                               .heads = 1,
                               .kv = layout_,
                               .out = out.matrix(tokens, 8)});
    REQUIRE(stream_->record().wait().ok());
  }
  void set_scores(float score) {
    std::vector<std::byte> state = state_.read();
    std::fill_n(KvStateLayout{1, budget_}.head(state.data(), 0).scores,
                budget_.ring() + budget_.kept, score);
    state_.write(state);
  }
  std::vector<KeptRow> kept(int64_t positions) const {
    std::vector<std::byte> state = state_.read();
    return test::read_kept_rows(layout_, budget_, positions, kv_.read().data(), state.data(), 0);
  }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  const KvBudget budget_;
  const KvLayout layout_{1, 8, Format::kF32};
  DeviceArray<std::byte> kv_, state_;
};

TEST_CASE("of rows with equal scores the later position stays", "[sanitizer]") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    OneHead sequence(*device, {1, 2, true});
    // Keys so far from other queries that all weights but a position's own are exactly zero.
    Matrix qkv(6 * 24, 0.0f);
    for (int64_t row = 0; row < 6; ++row) {
      float* at = qkv.data() + row * 24;
      at[row] = 300;      // q
      at[8 + row] = 300;  // k: only the query of the same row sees it
    }
    sequence.run(0, qkv);
    const auto kept = sequence.kept(6);
    REQUIRE(kept.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(kept[i].score == 1.0);
      CHECK(kept[i].position == static_cast<int64_t>(i) + 3);
    }
  }
}

TEST_CASE("of rows with equal scores a decode step drops the earliest", "[sanitizer]") {
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    OneHead sequence(*device, {1, 2, true});
    // Queries of zeros give every row of a step the same weight.
    const Matrix zeros(24, 0.0f);
    for (int64_t position = 0; position < 3; ++position) sequence.run(position, zeros);
    sequence.set_scores(1.0f);
    sequence.run(3, zeros);
    const auto kept = sequence.kept(4);
    REQUIRE(kept.size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(kept[i].position == static_cast<int64_t>(i) + 1);
  }
}

// The S x S matrix is never there, nor are all keys and values: what a thread has beside a prompt's
// scores does not grow with it.
TEST_CASE("scratch of a prompt does not grow with its length") {
  const int64_t size = GENERATE(64, 128, 256);
  const bool scored = GENERATE(false, true);
  const auto bytes = [&](int64_t keys) { return cpu::prompt_scratch_bytes(size, keys, scored); };
  const int64_t at_once = cpu::prompt_keys_at_once(size);
  INFO("head size " << size << ", " << at_once << " keys at once");
  CHECK(bytes(131072) == bytes(at_once + 1));
  CHECK(bytes(131072) < size_t{4} << 20);
  CHECK(bytes(at_once) < size_t{9} << 19);
  CHECK(bytes(100) < size_t{1} << 20);
}

TEST_CASE("a CPU thread's scratch holds 131,072 positions in a few MiB") {
  ModelShape shape;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_size = 64;
  shape.positions = 131072;
  const auto of_thread = [&](int64_t prompt) {
    return cpu_scratch_bytes(shape, 2, prompt) - cpu_scratch_bytes(shape, 1, prompt);
  };
  CHECK(of_thread(2048) < uint64_t{6} << 20);
  CHECK(of_thread(131072) < uint64_t{6} << 20);
}

TEST_CASE("a layer with a window keeps what lies within it and the rule") {
  const KvBudget full, heavy{10, 20, true, 4}, sinks{6, 3, false};
  CHECK(heavy.within(0, 100) == heavy);
  CHECK(full.within(100, 100) == full);  // No sequence is longer.
  CHECK(full.within(8, 100) == KvBudget{7});
  CHECK(heavy.within(8, 100) == KvBudget{7});
  CHECK(heavy.within(64, 100) == KvBudget{30});
  CHECK(heavy.within(200, 100) == KvBudget{30});
  CHECK(sinks.within(64, 100) == KvBudget{9});
  // A step attends to the window, its own position included.
  CHECK(full.within(8, 100).attended(50) == 8);
  CHECK(full.within(8, 100).attended(3) == 4);
  const KvBudget ring = full.within(8, 1000, 60);
  CHECK(ring.chunk_ring == 128);
  CHECK(ring.chunked_slots(500, 1000) == 128);
  CHECK(ring.chunked_slots(50, 1000) == 50);
  CHECK(ring.chunked_slots(3, 1000) == 8);
  CHECK(ring.chunked_span(500, 499) == 128);
  CHECK(ring.chunked_span(500, 500) == 8);
  CHECK(ring.chunked_slot(130) == 2);
  CHECK(full.within(8, 1000).chunked_slots(500, 1000) == 500);
}

}  // namespace
}  // namespace spillway::kv_budget_test
