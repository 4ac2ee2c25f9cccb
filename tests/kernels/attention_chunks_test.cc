// Prompts that are computed in chunks, with grouped heads, sliding windows and scales of their own,
// on every device: against the definition, and against the same prompt as a whole, on the CPU bit
// by bit.
//
// SPILLWAY_EMULATION_SEED: 1
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>

#include "kernels/ops.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/kept_rows.h"
#include "tests/support/paged_attention.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_chunks_test {
namespace {

using scalar::Matrix;
using test::DeviceArray;
using test::KeptRow;
using test::random_floats;
using test::relative_error;

struct Model {
  int64_t heads, kv_heads, head_size;
  Format format = Format::kF32;
  int64_t window = 0;
  float scale = 0;
  DType out = DType::kF32;

  int64_t group() const { return heads / kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
  KvLayout layout() const { return {kv_heads, head_size, format}; }
  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_size) + ", KV " + std::string(format_name(format)) + ", window " +
           std::to_string(window);
  }
};

// What a sequence left behind.
struct Run {
  std::vector<float> out;                  // Of the prompt, then of each step
  std::vector<std::vector<KeptRow>> kept;  // By KV head, after the prompt and after the last step
};

enum class Scores { kExact, kClose, kNone };

void require_same(const std::vector<KeptRow>& a, const std::vector<KeptRow>& b, Scores scores) {
  REQUIRE(a.size() == b.size());
  // Many rows: an assertion only where it fails.
  for (size_t i = 0; i < a.size(); ++i) {
    const auto close = Approx(b[i].score).epsilon(1e-4);
    const bool score = scores == Scores::kNone || a[i].score == b[i].score ||
                       (scores == Scores::kClose && a[i].score == close);
    if (score && a[i].position == b[i].position && a[i].key == b[i].key &&
        a[i].value == b[i].value) {
      continue;
    }
    REQUIRE(a[i].position == b[i].position);
    REQUIRE(a[i].key == b[i].key);
    REQUIRE(a[i].value == b[i].value);
    if (scores == Scores::kExact) REQUIRE(a[i].score == b[i].score);
    REQUIRE(a[i].score == close);
  }
}

// A sequence of one layer, whose rows are random numbers.
class Sequence {
 public:
  Sequence(Device& device, const Model& model, const KvBudget& budget, int64_t prompt,
           int64_t steps)
      : device_(device),
        stream_(device.new_stream("test")),
        model_(model),
        budget_(budget),
        prompt_(prompt),
        steps_(steps),
        qkv_(random_floats((prompt + steps) * model.width(), 11)) {}

  // Query head `head` of this one, with its KV head alone.
  Sequence alone(int64_t head) const {
    Model model = model_;
    model.heads = model.kv_heads = 1;
    Sequence one(device_, model, budget_, prompt_, steps_);
    const int64_t kv_head = head / model_.group(), size = model_.head_size;
    const int64_t columns[] = {head, model_.heads + kv_head,
                               model_.heads + model_.kv_heads + kv_head};
    for (int64_t row = 0; row < prompt_ + steps_; ++row) {
      for (int64_t i = 0; i < 3; ++i) {
        std::copy_n(qkv_.begin() + row * model_.width() + columns[i] * size, size,
                    one.qkv_.begin() + (row * 3 + i) * size);
      }
    }
    return one;
  }
  // That head's part of what run() gives.
  std::vector<float> part(const Run& run, int64_t head) const {
    std::vector<float> found;
    for (int64_t row = 0; row < prompt_ + steps_; ++row) {
      const auto at = run.out.begin() + row * model_.out_width() + head * model_.head_size;
      found.insert(found.end(), at, at + model_.head_size);
    }
    return found;
  }

  // `chunks`: lengths that repeat until the prompt's end; none: as a whole.
  Run run(const std::vector<int64_t>& chunks) const {
    const int64_t positions = prompt_ + steps_;
    const bool whole = chunks.empty();
    const KvStateLayout states{model_.kv_heads, budget_};
    const auto memory = [&](size_t bytes) {  // With a guard behind
      return DeviceArray<std::byte>(device_, *stream_,
                                    std::vector<std::byte>(bytes + 64, std::byte{0x5a}));
    };
    const auto cache = memory(model_.layout().sequence_bytes(
        whole ? budget_.slots(positions) : budget_.chunked_slots(prompt_, positions)));
    const auto state = memory(whole ? states.bytes() : states.chunked_bytes(prompt_));
    Run found;
    const auto call = [&](int64_t position, int64_t tokens, int64_t prompt) {
      const auto first = qkv_.begin() + position * model_.width();
      const DeviceArray<float> in(device_, *stream_,
                                  Matrix(first, first + tokens * model_.width()));
      const DeviceArray<std::byte> out(
          device_, *stream_,
          std::vector<std::byte>(static_cast<size_t>(tokens * model_.out_width()) *
                                 dtype_bytes(model_.out)));
      const AttentionItem item{0, tokens, position, cache.data(), budget_, state.data(), prompt};
      test::attention_both_ways(
          device_, *stream_,
          {.qkv = in.matrix(tokens, model_.width()),
           .items = {&item, 1},
           .heads = model_.heads,
           .kv = model_.layout(),
           .out = dense_matrix(out.data(), model_.out, tokens, model_.out_width()),
           .window = model_.window,
           .scale = model_.scale});
      const auto floats = test::floats_of(model_.out, out.read());
      found.out.insert(found.out.end(), floats.begin(), floats.end());
    };
    const auto keep = [&](int64_t at) {
      const auto kv = cache.read();
      auto bytes = state.read();
      for (int64_t head = 0; head < model_.kv_heads; ++head) {
        found.kept.push_back(
            test::read_kept_rows(model_.layout(), budget_, at, kv.data(), bytes.data(), head));
      }
      for (const auto* all : {&kv, static_cast<const std::vector<std::byte>*>(&bytes)}) {
        REQUIRE(std::all_of(all->end() - 64, all->end(),
                            [](std::byte b) { return b == std::byte{0x5a}; }));
      }
    };
    if (whole) call(0, prompt_, prompt_);
    size_t turn = 0;
    for (int64_t position = 0; !whole && position < prompt_;) {
      const int64_t tokens = std::min(chunks[turn++ % chunks.size()], prompt_ - position);
      call(position, tokens, prompt_);
      position += tokens;
    }
    keep(prompt_);
    for (int64_t step = 0; step < steps_; ++step) call(prompt_ + step, 1, 0);
    keep(positions);
    return found;
  }

  // What the definition says.
  Run define() const {
    Run found;
    found.out.resize(static_cast<size_t>((prompt_ + steps_) * model_.out_width()));
    std::vector<test::KeptRows> heads;
    for (int64_t head = 0; head < model_.kv_heads; ++head) heads.emplace_back(budget_, 0, head);
    const auto round = [&](const Matrix& row) { return test::cached_row(model_.format, row); };
    const scalar::Attention how{model_.window, double{model_.scale}};
    const auto define = [&](int64_t h, int64_t position, int64_t rows) {
      const auto part = [&](int64_t column) { return columns(position, rows, column); };
      std::vector<Matrix> queries;
      for (int64_t g = 0; g < model_.group(); ++g) queries.push_back(part(h * model_.group() + g));
      const Matrix k = part(model_.heads + h), v = part(model_.heads + model_.kv_heads + h);
      test::KeptRows& head = heads[static_cast<size_t>(h)];
      const auto outputs = position == 0
                               ? head.prompt(k, v, queries, model_.head_size, round, how)
                               : head.step(position, round(k), round(v), queries, how.scale);
      for (int64_t g = 0; g < model_.group(); ++g) {
        for (int64_t row = 0; row < rows; ++row) {
          const auto from = outputs[static_cast<size_t>(g)].begin() + row * model_.head_size;
          std::copy_n(from, model_.head_size,
                      found.out.begin() + (position + row) * model_.out_width() +
                          (h * model_.group() + g) * model_.head_size);
        }
      }
    };
    const auto keep = [&] {
      for (const auto& head : heads) found.kept.push_back(head.rows());
    };
    for (int64_t h = 0; h < model_.kv_heads; ++h) define(h, 0, prompt_);
    keep();
    for (int64_t step = 0; step < steps_; ++step) {
      for (int64_t h = 0; h < model_.kv_heads; ++h) define(h, prompt_ + step, 1);
    }
    keep();
    return found;
  }

 private:
  Matrix columns(int64_t first_row, int64_t rows, int64_t column) const {
    Matrix part;
    for (int64_t r = first_row; r < first_row + rows; ++r) {
      const auto from = qkv_.begin() + r * model_.width() + column * model_.head_size;
      part.insert(part.end(), from, from + model_.head_size);
    }
    return part;
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  const Model model_;
  const KvBudget budget_;
  const int64_t prompt_, steps_;
  Matrix qkv_;
};

void require_close(const Run& got, const Run& want, const Model& model, double error) {
  const auto size = static_cast<size_t>(model.head_size);
  REQUIRE(got.out.size() == want.out.size());
  for (size_t i = 0; i < got.out.size(); i += size) {
    const double off = relative_error({got.out.data() + i, size}, {want.out.data() + i, size});
    if (off < error) continue;
    INFO("row " << i / static_cast<size_t>(model.out_width()) << ", head "
                << i % static_cast<size_t>(model.out_width()) / size);
    REQUIRE(off < error);
  }
}

// Whole and in chunks, against the definition and against each other. On the CPU also with every
// set of instructions.
void check(const Model& model, const KvBudget& budget, int64_t prompt,
           const std::vector<std::vector<int64_t>>& cuts, int64_t steps = 3,
           std::optional<double> narrow = {}) {
  const double error = narrow.value_or(test::attention_error(model.format));
  for (const auto& device : test::test_devices()) {
    const bool cpu = device->kind() == DeviceKind::kCpu;
    INFO(device->name() << ", " << model.name() << ", prompt " << prompt << ", recent "
                        << budget.recent << ", kept " << budget.kept
                        << (budget.by_score ? " by score" : ""));
    Sequence sequence(*device, model, budget, prompt, steps);
    const Run want = sequence.define(), whole = sequence.run({});
    require_close(whole, want, model, error);
    for (size_t i = 0; i < want.kept.size(); ++i) {
      INFO("kept rows " << i);
      if (model.out == DType::kF32) {
        const bool scored = budget.scored();
        require_same(whole.kept[i], want.kept[i], scored ? Scores::kClose : Scores::kNone);
      }
    }
    for (const auto& chunks : cuts) {
      INFO("chunks of " << chunks[0] << (chunks.size() > 1 ? " and others" : ""));
      const Run cut = sequence.run(chunks);
      // A real device's tensor cores need not sum a row as they sum it in another place of a tile.
      if (cpu || test::emulated()) REQUIRE(cut.out == whole.out);
      require_close(cut, whole, model, 1e-6);
      for (size_t i = 0; i < whole.kept.size(); ++i) {
        INFO("kept rows " << i);
        require_same(cut.kept[i], whole.kept[i], cpu ? Scores::kExact : Scores::kClose);
      }
    }
  }
}

const std::vector<std::vector<int64_t>> kCuts = {{1}, {7}, {64}, {512}, {63, 1, 30}};

// The emulated device is slow.
std::vector<std::vector<int64_t>> cuts() {
  return test::thorough() ? kCuts : std::vector<std::vector<int64_t>>{{1}, {13}, {32, 1}};
}
int64_t scaled(int64_t thorough, int64_t quick) {
  return test::thorough() ? thorough : quick;
}

TEST_CASE("a prompt in chunks is the prompt as a whole") {
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  const auto model = GENERATE(Model{2, 2, 64}, Model{4, 1, 20}, Model{6, 2, 80});
  const bool some = format == Format::kF32 || format == Format::kQ4 || model.head_size == 20;
  if (!test::thorough() && !some) return;
  Model with = model;
  with.format = format;
  check(with, {}, scaled(200, 45), cuts());
}

TEST_CASE("a prompt in chunks under a limited budget is the prompt as a whole", "[sanitizer]") {
  const auto format = GENERATE(Format::kF32, Format::kF16, Format::kQ4, Format::kQ8);
  const auto budget = GENERATE(
      KvBudget{3, 4, true}, KvBudget{1, 0, true}, KvBudget{16, 15, true}, KvBudget{7, 30, true},
      KvBudget{40, 20, true}, KvBudget{5, 2, false}, KvBudget{4, 0, false}, KvBudget{17, 16, false},
      KvBudget{6, 20, true, 5}, KvBudget{9, 8, true, 7},
      KvBudget{5, 17, true, 4, KvScore::kRandom, 11}, KvBudget{8, 30, true, 0, KvScore::kSnapMean},
      KvBudget{8, 30, true, 3, KvScore::kSnapMax}, KvBudget{5, 17, true, 0, KvScore::kSnapMax});
  const int64_t prompt = GENERATE(5, 31, 60, 150);
  const bool some = (format == Format::kF32 && prompt == 60) || prompt == 31;
  if (!test::thorough() && !some) return;
  if (budget.recent + budget.kept >= prompt + 3) return;
  check({4, 2, 16, format}, budget, prompt, cuts());
}

// Also where nothing is dropped yet, or the rows that move fill the slots of others.
TEST_CASE("rows of a chunked prompt move to the slots of any budget") {
  const int64_t recent = GENERATE(1, 2, 9, 20), kept = GENERATE(0, 1, 6, 25);
  const bool by_score = GENERATE(false, true);
  if (!test::thorough() && recent != 9) return;
  for (const int64_t prompt : {1, 2, 9, 10, 11, 25, 30, 34, 46, 60}) {
    check({1, 1, 8}, {recent, kept, by_score}, prompt, {{prompt}, {4}}, 60);
    if (!test::thorough()) break;
  }
}

TEST_CASE("heads that share keys and values attend as the definition says") {
  const auto model =
      GENERATE(Model{32, 8, 64}, Model{16, 2, 128}, Model{5, 1, 96}, Model{14, 2, 64},
               Model{71, 1, 64}, Model{3, 1, 256}, Model{40, 1, 80}, Model{100, 1, 8});
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  if (!test::thorough() && (model.heads > 16 || format == Format::kBF16)) return;
  if (!test::thorough() && format == Format::kQ8 && model.heads > 5) return;
  Model with = model;
  with.format = format;
  check(with, {}, scaled(70, 20), {{33}});
  check(with, {9, 12, true}, scaled(70, 20), {{33}});
}

TEST_CASE("a sliding window is that of the definition, whole and in chunks") {
  const int64_t window = GENERATE(2, 5, 33, 64, 100);
  const auto model = GENERATE(Model{2, 2, 16}, Model{4, 1, 64});
  Model with = model;
  with.window = window;
  const int64_t prompt = scaled(230, 50);
  INFO("window " << window);
  if (window >= prompt) {
    // No step drops a row.
    check(with, {}, prompt, cuts(), 0);
  } else {
    check(with, {window - 1, 0, false}, prompt, cuts(), 5);
    check(with, {}, prompt, cuts(), 0);
    with.format = Format::kF16;
    check(with, {window + 3, 4, true}, prompt, cuts(), 0);
  }
}

// What a layer with a sliding window keeps of its prompt meanwhile is a ring, too.
TEST_CASE("chunks in a ring are those in slots of their own") {
  const int64_t window = GENERATE(2, 5, 33, 64, 100);
  const auto rule = GENERATE(KvBudget{}, KvBudget{3, 4, true}, KvBudget{20, 17, false});
  const auto format = GENERATE(Format::kF32, Format::kF16, Format::kQ4, Format::kQ8);
  Model model{4, 2, format == Format::kQ8 ? 32 : 16, format};  // Prompts over q8 may take integers.
  model.window = window;
  const int64_t prompt = scaled(430, 150), steps = 5;
  const bool some = window == 33 ? format != Format::kF16 : window == 5 && format == Format::kF32;
  if (!test::thorough() && !some) return;
  if (window >= prompt + steps) return;
  INFO("window " << window);
  for (const auto& chunks : cuts()) {
    const int64_t most = *std::max_element(chunks.begin(), chunks.end());
    const KvBudget budget = rule.within(window, prompt + steps, most);
    REQUIRE(budget.chunked_slots(prompt, prompt + steps) <= std::max(prompt, window + most + 63));
    if (prompt > window + most + 62) {
      REQUIRE(budget.chunked_slots(prompt, prompt + steps) < prompt);
    }
    check(model, budget, prompt, {chunks}, steps);
  }
}

TEST_CASE("chunks in a ring with narrow outputs are the prompt as a whole", "[sanitizer]") {
  auto model = GENERATE(Model{2, 2, 64}, Model{2, 1, 20});
  model.out = DType::kF16;
  model.format = Format::kF16;
  model.window = 21;
  const int64_t prompt = scaled(330, 150);
  check(model, KvBudget{}.within(21, prompt, 31), prompt, {{7}, {31, 1}}, 0, 1.0 / 32);
}

TEST_CASE("a scale of its own takes the place of that by head size", "[sanitizer]") {
  Model model{4, 2, 16};
  model.scale = GENERATE(0.5f, 0.015625f, 1.0f);
  check(model, {}, scaled(100, 30), {{7}});
  check(model, {5, 8, true}, scaled(100, 30), {{7}});
}

TEST_CASE("chunks with narrow outputs are the prompt as a whole", "[sanitizer]") {
  auto model = GENERATE(Model{2, 2, 64}, Model{6, 2, 32}, Model{8, 1, 128}, Model{2, 1, 20},
                        Model{2, 2, 80}, Model{1, 1, 192});
  model.out = GENERATE(DType::kBF16, DType::kF16);
  model.format = model.out == DType::kBF16 ? Format::kBF16 : Format::kF16;
  model.window = GENERATE(0, 21);
  check(model, {}, scaled(150, 70), {{7}, {64, 1}}, 0, 1.0 / 32);
}

// The CPU may compute these by pairs of bf16: scores, too, are those of the whole prompt.
TEST_CASE("scores of chunks with narrow outputs are those of the whole prompt") {
  Model model{6, 2, 80, Format::kBF16};
  model.out = DType::kBF16;
  const auto score = GENERATE(KvScore::kAttention, KvScore::kSnapMean, KvScore::kSnapMax);
  check(model, {20, 30, true, 2, score}, scaled(150, 70), {{7}, {64, 1}}, 0, 1.0 / 32);
  check(model, {20, 0, false}, scaled(150, 70), {{7}, {64, 1}}, 0, 1.0 / 32);
}

// More keys than the scratch of a thread holds at once: keys and values are packed in runs, and
// scores come from a second pass; in a chunk of a prompt not as long from the first one.
TEST_CASE("prompts longer than a thread's scratch are those in chunks", "[slow]") {
  const auto budget = GENERATE(KvBudget{}, KvBudget{300, 400, true},
                               KvBudget{300, 400, true, 0, KvScore::kSnapMean},
                               KvBudget{20, 400, true, 0, KvScore::kSnapMax});
  const int64_t window = GENERATE(0, 700);
  if (window != 0 && budget.by_score) return;  // No layer has both: KvBudget::within()
  Model model{2, 1, 256, Format::kBF16};
  model.window = window;
  model.out = GENERATE(DType::kF32, DType::kBF16);
  if (test::emulated()) return;
  if (!test::thorough() && (window != 0 || budget.score != KvScore::kAttention)) return;
  const int64_t prompt = 1700;
  const bool narrow = model.out == DType::kBF16;
  check(model, budget, prompt, {{1000}}, narrow ? 0 : 1,
        narrow ? std::optional(1.0 / 32) : std::nullopt);
}

TEST_CASE("chunks have the bits of the whole prompt with every set of instructions") {
  const auto device = open_cpu_device(2).value();
  const Model model{6, 2, 80, Format::kBF16};
  const auto score = GENERATE(KvScore::kAttention, KvScore::kSnapMean, KvScore::kSnapMax);
  Sequence sequence(*device, model, {20, 30, true, 0, score}, 150, 2);
  test::for_each_instruction_set([&] {
    const Run whole = sequence.run({});
    for (const auto& chunks : kCuts) {
      const Run cut = sequence.run(chunks);
      CHECK(cut.out == whole.out);
      for (size_t i = 0; i < whole.kept.size(); ++i) {
        require_same(cut.kept[i], whole.kept[i], Scores::kExact);
      }
    }
  });
}

// Heads that share keys and values are computed together, in as many sizes of groups as there are.
TEST_CASE("a query head has the bits that it has alone") {
  const int64_t heads = GENERATE(2, 7, 12), size = GENERATE(64, 80, 128);
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  if (!test::thorough() && (heads == 12 || format == Format::kBF16)) return;
  if (!test::thorough() && format == Format::kQ8 && size != 64) return;
  const Model model{heads, 1, size, format};
  INFO(model.name());
  for (const auto& device : test::test_devices()) {
    if (device->kind() != DeviceKind::kCpu && !test::emulated()) continue;
    const auto compare = [&] {
      const Sequence sequence(*device, model, {}, scaled(100, 20), 2);
      const Run together = sequence.run({});
      for (int64_t head = 0; head < heads; ++head) {
        INFO(device->name() << ", head " << head);
        CHECK(sequence.part(together, head) == sequence.alone(head).run({}).out);
      }
    };
    if (device->kind() != DeviceKind::kCpu) {
      compare();
      continue;
    }
    test::for_each_instruction_set(compare);
  }
}

// Sequences of every kind in one call: none has other bits than alone.
TEST_CASE("chunks, whole prompts and decode steps share a call") {
  constexpr int64_t kTokens[] = {40, 1, 7, 1, 90};
  constexpr int64_t kPositions[] = {0, 60, 60, 60, 33};
  constexpr int64_t kPrompts[] = {40, 61, 100, 0, 123};
  const Model model{4, 2, 16, Format::kF16};
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    const auto stream = device->new_stream("test");
    const auto run = [&](bool together) {
      std::vector<std::unique_ptr<DeviceArray<uint16_t>>> caches;
      std::vector<AttentionItem> items;
      int64_t rows = 0;
      for (size_t i = 0; i < 5; ++i) {
        const size_t bytes = model.layout().sequence_bytes(130);
        std::vector<uint16_t> noise(bytes / 2);
        const auto numbers = random_floats(static_cast<int64_t>(noise.size()), i);
        std::transform(numbers.begin(), numbers.end(), noise.begin(), f32_to_f16);
        caches.push_back(std::make_unique<DeviceArray<uint16_t>>(*device, *stream, noise));
        items.push_back({rows,
                         kTokens[i],
                         kPositions[i],
                         reinterpret_cast<std::byte*>(caches.back()->data()),
                         {},
                         nullptr,
                         kPrompts[i]});
        rows += kTokens[i];
      }
      const DeviceArray<float> in(*device, *stream, random_floats(rows * model.width(), 9)),
          out(*device, *stream, Matrix(static_cast<size_t>(rows * model.out_width())));
      for (size_t i = 0; i < (together ? 1 : items.size()); ++i) {
        const std::span<const AttentionItem> all(items);
        test::attention_both_ways(*device, *stream,
                                  {.qkv = in.matrix(rows, model.width()),
                                   .items = together ? all : all.subspan(i, 1),
                                   .heads = model.heads,
                                   .kv = model.layout(),
                                   .out = out.matrix(rows, model.out_width())});
      }
      return out.read();
    };
    CHECK(run(true) == run(false));
  }
}

}  // namespace
}  // namespace spillway::attention_chunks_test
