// Prompts that go through behind a beginning that they share, on every device: against the
// definition, and against the same prompts as a whole, on the CPU bit by bit.
//
// SPILLWAY_EMULATION_SEED: 1

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "kernels/ops.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/kept_rows.h"
#include "tests/support/paged_attention.h"
#include "tests/support/random_data.h"
#include "tests/support/rounding.h"
#include "tests/support/seed.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_beginning_test {
namespace {

using scalar::Matrix;
using test::DeviceArray;
using test::KeptRow;
using test::random_floats;
using test::relative_error;
using Bytes = std::vector<std::byte>;

constexpr int64_t kLayer = 3;
constexpr std::byte kGuard{0x5a};

struct Model {
  int64_t heads, kv_heads, head_size;
  Format format = Format::kF32;
  DType out = DType::kF32;

  int64_t group() const { return heads / kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
  KvLayout layout() const { return {kv_heads, head_size, format}; }
  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_size) + ", KV " + std::string(format_name(format)) + ", out " +
           std::string(dtype_name(out));
  }
};

// A sequence whose first `begun` positions are those of the beginning; 0: one without.
struct Sequence {
  KvBudget budget;
  int64_t begun = 0, tokens = 1;  // Of the prompt: those of the beginning, and those behind
  int64_t ahead = 0;              // Calls by which it is ahead of the others
  int64_t chunk = 0;              // Tokens of a chunk in the call before; 0: none
  Matrix qkv = {};                // [prompt + steps]

  int64_t prompt() const { return begun + tokens; }
  std::string name() const {
    return std::to_string(begun) + " + " + std::to_string(tokens) + " tokens, recent " +
           std::to_string(budget.recent) + ", kept " + std::to_string(budget.kept) + ", first " +
           std::to_string(budget.first) + (budget.by_score ? ", by score " : ", the first ") +
           std::to_string(static_cast<int>(budget.score));
  }
};

// What a sequence left behind: outputs of its prompt and of each step; by KV head what is kept
// after the prompt and after the last step; and the bytes of cache and state then.
struct Run {
  std::vector<Matrix> outs;
  std::vector<std::vector<KeptRow>> kept;
  std::vector<Bytes> bytes;
};

// A sequence's cache and state, with a guard behind each.
struct Memory {
  Memory(Device& device, Stream& stream, const Model& model, const Sequence& sequence,
         int64_t steps)
      : kv(device, stream, guarded(model.layout().sequence_bytes(slots(sequence, steps)))),
        state(device, stream, guarded(state_bytes(model, sequence))) {}
  static int64_t slots(const Sequence& one, int64_t steps) {
    return one.chunk > 0 ? one.budget.chunked_slots(one.prompt(), one.prompt() + steps)
                         : one.budget.slots(one.prompt() + steps);
  }
  static size_t state_bytes(const Model& model, const Sequence& one) {
    const KvStateLayout layout{model.kv_heads, one.budget};
    return one.chunk > 0 ? layout.chunked_bytes(one.prompt()) : layout.bytes();
  }
  static Bytes guarded(size_t bytes) { return Bytes(bytes + 64, kGuard); }

  void snapshot(const Model& model, const Sequence& sequence, int64_t positions, Run* to) const {
    to->bytes.push_back(kv.read());
    to->bytes.push_back(state.read());
    for (const Bytes* bytes : {&to->bytes.end()[-2], &to->bytes.end()[-1]}) {
      REQUIRE(
          std::all_of(bytes->end() - 64, bytes->end(), [](std::byte b) { return b == kGuard; }));
    }
    for (int64_t head = 0; head < model.kv_heads; ++head) {
      to->kept.push_back(test::read_kept_rows(model.layout(), sequence.budget, positions,
                                              to->bytes.end()[-2].data(),
                                              to->bytes.end()[-1].data(), head));
    }
  }

  DeviceArray<std::byte> kv, state;
};

// The cached rows of a beginning, in one piece or in blocks that lie apart, between guards; and the
// scores that its queries gave: what a chunk of a longer prompt leaves.
class Beginning {
 public:
  Beginning(Device& device, Stream& stream, const Model& model, const Matrix& qkv, bool apart)
      : layout_(model.layout()),
        rows_(static_cast<int64_t>(qkv.size()) / model.width()),
        longer_(rows_ + 37),
        state_(device, stream, Bytes(states().chunked_bytes(longer_))) {
    const DeviceArray<std::byte> cache(device, stream, Bytes(layout_.sequence_bytes(rows_)));
    const DeviceArray<float> in(device, stream, qkv);
    const DeviceArray<std::byte> out(
        device, stream,
        Bytes(static_cast<size_t>(rows_ * model.out_width()) * dtype_bytes(model.out)));
    const AttentionItem item{0, rows_, 0, cache.data(), kScored, state_.data(), longer_};
    attention(stream, {.qkv = in.matrix(rows_, model.width()),
                       .items = {&item, 1},
                       .heads = model.heads,
                       .kv = layout_,
                       .out = dense_matrix(out.data(), model.out, rows_, model.out_width())});
    const Bytes piece = cache.read();
    const auto blocks = static_cast<size_t>(kv_blocks(rows_));
    std::vector<size_t> places(blocks);
    std::iota(places.begin(), places.end(), size_t{0});
    if (apart) std::shuffle(places.begin(), places.end(), std::mt19937_64(rows_));
    const size_t bytes = layout_.block_bytes(), step = bytes + (apart ? 64 : 0);
    before_.assign(64 + blocks * step + 64, kGuard);
    for (size_t block = 0; block < blocks; ++block) {
      std::copy_n(piece.data() + block * bytes, bytes, before_.data() + 64 + places[block] * step);
    }
    memory_ = std::make_unique<DeviceArray<std::byte>>(device, stream, before_);
    state_before_ = state_.read();
    for (size_t block = 0; block < blocks && apart; ++block) {
      table_.push_back(memory_->data() + 64 + places[block] * step);
    }
  }

  void put_before(AttentionItem& item) const {
    item.beginning = table_.empty() ? KvBlocks(memory_->data() + 64) : KvBlocks(table_.data());
    if (!item.budget.scored() || item.budget.snaps()) return;
    item.beginning_scores = states().prompt_scores_at(state_.data(), 0, longer_);
    item.beginning_scores_stride = states().prompt_scores(longer_);
  }
  void forget_table() { std::fill(table_.begin(), table_.end(), nullptr); }
  void require_unchanged() const {
    REQUIRE(memory_->read() == before_);
    REQUIRE(state_.read() == state_before_);
  }

 private:
  static constexpr KvBudget kScored{1, 1, true};
  KvStateLayout states() const { return {layout_.heads, kScored}; }

  const KvLayout layout_;
  const int64_t rows_, longer_;
  DeviceArray<std::byte> state_;
  std::unique_ptr<DeviceArray<std::byte>> memory_;
  Bytes before_, state_before_;
  std::vector<std::byte*> table_;
};

// A sequence's share of a call: of its first chunk at step -1, of the rest of its prompt, behind
// the beginning if there is one, at step 0.
AttentionItem item_of(const Sequence& one, int64_t step, const Beginning* beginning) {
  AttentionItem item{.budget = one.budget, .prompt = step > 0 ? 0 : one.prompt(), .layer = kLayer};
  const bool behind = step == 0 && one.begun > 0 && beginning != nullptr;
  if (behind) beginning->put_before(item);
  if (step == 0) item.position = behind ? one.begun : one.chunk;
  if (step > 0) item.position = one.prompt() + step - 1;
  item.tokens = step > 0 ? 1 : step < 0 ? one.chunk : one.prompt() - item.position;
  return item;
}

// All sequences in a call each turn: their prompts, behind the beginning where there is one, or
// whole, and then `steps` decode steps.
std::vector<Run> run(Device& device, const Model& model, std::span<const Sequence> sequences,
                     int64_t steps, Beginning* beginning) {
  const auto stream = device.new_stream("test");
  std::vector<Run> runs(sequences.size());
  std::vector<std::unique_ptr<Memory>> memories;
  int64_t first = 0;
  for (const Sequence& one : sequences) {
    memories.push_back(std::make_unique<Memory>(device, *stream, model, one, steps));
    first = std::min(first, one.chunk > 0 ? -1 : -one.ahead);
  }
  for (int64_t turn = first; turn <= steps; ++turn) {
    Matrix qkv;
    std::vector<AttentionItem> items;
    std::vector<size_t> numbers;  // Of the sequences
    int64_t rows = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& one = sequences[i];
      const int64_t step = turn + one.ahead;
      if (step < (one.chunk > 0 ? -1 : 0) || step > steps) continue;
      AttentionItem item = item_of(one, step, beginning);
      item.first_row = rows;
      item.kv = memories[i]->kv.data();
      item.state = memories[i]->state.data();
      const auto from = one.qkv.begin() + item.position * model.width();
      qkv.insert(qkv.end(), from, from + item.tokens * model.width());
      rows += item.tokens;
      items.push_back(item);
      numbers.push_back(i);
    }
    const DeviceArray<float> in(device, *stream, qkv);
    const DeviceArray<std::byte> out(
        device, *stream,
        Bytes(static_cast<size_t>(rows * model.out_width()) * dtype_bytes(model.out)));
    test::attention_both_ways(
        device, *stream,
        {.qkv = in.matrix(rows, model.width()),
         .items = items,
         .heads = model.heads,
         .kv = model.layout(),
         .out = dense_matrix(out.data(), model.out, rows, model.out_width())});
    // Every prompt has gone through.
    if (turn == 0 && beginning != nullptr) beginning->forget_table();
    const Matrix outs = test::floats_of(model.out, out.read());
    for (size_t i = 0; i < items.size(); ++i) {
      const auto from = outs.begin() + items[i].first_row * model.out_width();
      const Sequence& one = sequences[numbers[i]];
      if (turn + one.ahead < 0) continue;  // A first chunk
      Run& found = runs[numbers[i]];
      found.outs.emplace_back(from, from + items[i].tokens * model.out_width());
      const auto calls = static_cast<int64_t>(found.outs.size());
      if (calls != 1 && calls != steps + 1) continue;
      memories[numbers[i]]->snapshot(model, one, one.prompt() + calls - 1, &found);
    }
  }
  return runs;
}

// What the definition says of a sequence.
Run define(const Model& model, const Sequence& one, int64_t steps) {
  Run found;
  std::vector<test::KeptRows> heads;
  for (int64_t h = 0; h < model.kv_heads; ++h) heads.emplace_back(one.budget, kLayer, h);
  const auto round = [&](const Matrix& row) { return test::cached_row(model.format, row); };
  for (int64_t step = 0; step <= steps; ++step) {
    const int64_t position = step == 0 ? 0 : one.prompt() + step - 1;
    const int64_t rows = step == 0 ? one.prompt() : 1, size = model.head_size;
    const auto part = [&](int64_t column) {
      Matrix numbers;
      for (int64_t row = position; row < position + rows; ++row) {
        const auto from = one.qkv.begin() + row * model.width() + column * size;
        numbers.insert(numbers.end(), from, from + size);
      }
      return numbers;
    };
    Matrix& out = found.outs.emplace_back(static_cast<size_t>(rows * model.out_width()));
    for (int64_t h = 0; h < model.kv_heads; ++h) {
      std::vector<Matrix> queries;
      for (int64_t g = 0; g < model.group(); ++g) queries.push_back(part(h * model.group() + g));
      const Matrix k = part(model.heads + h), v = part(model.heads + model.kv_heads + h);
      test::KeptRows& head = heads[static_cast<size_t>(h)];
      const auto outputs = step == 0 ? head.prompt(k, v, queries, size, round)
                                     : head.step(position, round(k), round(v), queries);
      for (int64_t g = 0; g < model.group(); ++g) {
        for (int64_t row = 0; row < rows; ++row) {
          std::copy_n(outputs[static_cast<size_t>(g)].begin() + row * size, size,
                      out.begin() + row * model.out_width() + (h * model.group() + g) * size);
        }
      }
    }
    if (step != 0 && step != steps) continue;
    for (const auto& head : heads) found.kept.push_back(head.rows());
  }
  return found;
}

// The outputs that both have, from the last rows of the prompt on. error 0: the same bits.
void require_outputs(const Model& model, const Run& got, const Run& want, double error) {
  const auto size = static_cast<size_t>(model.head_size);
  REQUIRE(got.outs.size() == want.outs.size());
  for (size_t step = 0; step < got.outs.size(); ++step) {
    const std::span<const float> one = got.outs[step];
    REQUIRE(one.size() <= want.outs[step].size());
    const auto other = std::span<const float>(want.outs[step]).last(one.size());
    for (size_t i = 0; i < one.size(); i += size) {  // Many: an assertion only where it fails
      const double off = relative_error(one.subspan(i, size), other.subspan(i, size));
      if (off <= error) continue;
      INFO("step " << step << ", head " << i / size << " from the first row on");
      REQUIRE(off <= error);
    }
  }
}

// Positions, keys and values are the same; scores, where there are some, to within rounding.
void require_kept(const Run& got, const Run& want, bool scored) {
  REQUIRE(got.kept.size() == want.kept.size());
  for (size_t head = 0; head < got.kept.size(); ++head) {
    INFO("kept rows " << head);
    REQUIRE(got.kept[head].size() == want.kept[head].size());
    for (size_t i = 0; i < got.kept[head].size(); ++i) {
      const KeptRow &one = got.kept[head][i], &other = want.kept[head][i];
      const bool score = !scored || one.score == Approx(other.score).epsilon(1e-4);
      if (score && one.position == other.position && one.key == other.key &&
          one.value == other.value) {
        continue;
      }
      REQUIRE(one.position == other.position);
      REQUIRE(one.key == other.key);
      REQUIRE(one.value == other.value);
      REQUIRE(one.score == Approx(other.score).epsilon(1e-4));
    }
  }
}

// More sequences of a call: one that decodes already, the last chunk of a prompt, and an ordinary
// prompt.
void add_others(std::vector<Sequence>* sequences) {
  sequences->insert(sequences->begin() + 1, {{}, 0, 21, 1});
  sequences->push_back({{5, 8, true}, 0, 30, 0, 13});
  sequences->push_back({{6, 9, true}, 0, 37});
}

void fill(const Model& model, const Matrix& shared, int64_t steps, uint64_t seed,
          std::vector<Sequence>* sequences) {
  for (Sequence& one : *sequences) {
    one.qkv.assign(shared.begin(), shared.begin() + one.begun * model.width());
    const Matrix own = random_floats((one.tokens + steps) * model.width(), ++seed);
    one.qkv.insert(one.qkv.end(), own.begin(), own.end());
  }
}

// All sequences in calls together, with their prompts behind the beginning, against each alone with
// its prompt as a whole, and against the definition.
void check(Device& device, const Model& model, int64_t begun, std::vector<Sequence> sequences,
           bool apart, uint64_t seed, bool defined = true, int64_t steps = 3) {
  INFO(device.name() << ", " << model.name() << (apart ? ", blocks apart" : ", one piece"));
  const Matrix shared = random_floats(begun * model.width(), seed);
  fill(model, shared, steps, seed, &sequences);
  const auto stream = device.new_stream("test");
  Beginning beginning(device, *stream, model, shared, apart);
  const auto got = run(device, model, sequences, steps, &beginning);
  beginning.require_unchanged();
  const bool cpu = device.kind() == DeviceKind::kCpu, wide = model.out == DType::kF32;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& one = sequences[i];
    INFO(one.name());
    const Run whole = run(device, model, {&one, 1}, steps, nullptr)[0];
    // A real device's tensor cores need not sum a row as they sum it in another place of a tile.
    const double same = cpu || test::emulated() ? 0 : wide ? 1e-6 : 1.0 / 64;
    require_outputs(model, got[i], whole, same);
    if (cpu) REQUIRE(got[i].bytes == whole.bytes);
    require_kept(got[i], whole, one.budget.scored());
    if (!defined) continue;
    const Run want = define(model, one, steps);
    require_outputs(model, got[i], want, wide ? test::attention_error(model.format) : 1.0 / 32);
    if (wide) require_kept(got[i], want, one.budget.scored());
  }
}

// Limits of every rule, with `tokens` behind the beginning.
std::vector<Sequence> sequences_of(int64_t begun, int64_t tokens) {
  std::vector<Sequence> found;
  const auto add = [&](int64_t count, const KvBudget& budget) {
    if (budget.recent + budget.kept < begun + count + 3) found.push_back({budget, begun, count});
  };
  for (const int64_t count : {tokens, int64_t{1}}) {
    add(count, {3, 4, true});
    add(count, {16, 15, true});
    add(count, {30, 12, true, 5});  // The recent ones begin before the prompt's last rows.
    add(count, {1, 0, true});
    add(count, {5, 2, false});
    add(count, {40, 0, false});
    add(count, {17, 20, false});
    add(count, {5, 17, true, 4, KvScore::kRandom, 11});
    add(count, {35, 30, true, 0, KvScore::kRandom, 12});
    add(count, {begun + count - 1, 2, true});  // Nothing is dropped before a step.
  }
  for (const KvScore score : {KvScore::kSnapMean, KvScore::kSnapMax}) {
    const int64_t queries = begun + tokens < 256 ? 32 : 64;
    if (tokens >= queries) add(tokens, {8, 60, true, 3, score});
    add(queries, {queries + 9, 7, true, 0, score});
    // Of fewer queries, as many as there are recent ones: of one as well.
    add(tokens, {std::min<int64_t>(tokens, 5), 17, true, 0, score});
    add(1, {1, 20, true, 2, score});
  }
  return found;
}

int64_t scaled(int64_t thorough, int64_t quick) {
  return test::thorough() ? thorough : quick;
}

TEST_CASE("a prompt behind a shared beginning is the prompt as a whole", "[slow]") {
  const auto format = GENERATE(Format::kF32, Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  const int64_t begun = GENERATE(16, 48, 64, 160), tokens = GENERATE(1, 7, 40, 150);
  const bool small = begun != 160 && tokens != 150 && (begun == 64) == (tokens == 40);
  if (!test::thorough() && (!small || format == Format::kBF16)) return;
  const bool one_of_a_kind = format != Format::kF16 && format != Format::kQ8;
  if (!test::thorough() && !one_of_a_kind && (begun != 48 || tokens != 7)) return;
  const Model model{4, 2, 16, format};
  auto sequences = sequences_of(begun, tokens);
  add_others(&sequences);
  for (const auto& device : test::test_devices()) {
    check(*device, model, begun, sequences, (begun + tokens) % 16 == 7, 5);
  }
}

TEST_CASE("heads that share keys and values do so behind a shared beginning") {
  const auto shape = GENERATE(Model{16, 2, 128}, Model{5, 1, 96}, Model{6, 2, 80}, Model{3, 3, 5},
                              Model{40, 1, 8});
  const auto format = GENERATE(Format::kF32, Format::kF16, Format::kQ4, Format::kQ8);
  const bool few =
      shape.heads <= 6 && format != Format::kF16 && (format != Format::kQ8 || shape.kv_heads == 2);
  if (!test::thorough() && !few) return;
  Model model = shape;
  model.format = format;
  for (const auto& device : test::test_devices()) {
    check(*device, model, 48,
          {{{9, 12, true, 2}, 48, 35}, {{20, 3, false}, 48, 9}, {{4, 30, true}, 48, 17}},
          shape.heads % 2 == 0, 6);
  }
}

// The CPU may compute these by pairs of bf16, a GPU does on tensor cores.
TEST_CASE("prompts behind a shared beginning with narrow outputs are those as a whole", "[slow]") {
  Model model = GENERATE(Model{2, 2, 64}, Model{6, 2, 80}, Model{2, 1, 20}, Model{2, 1, 128});
  model.out = GENERATE(DType::kBF16, DType::kF16);
  model.format = GENERATE(Format::kBF16, Format::kF16, Format::kQ4, Format::kQ8);
  const int64_t begun = GENERATE(16, 80, 176), tokens = scaled(150, 40);
  if (!test::thorough() && (begun == 176 || model.format == Format::kQ4)) return;
  // Of what goes out and the cache in all pairs, a device that is emulated takes three.
  const bool alike = model.format == (model.out == DType::kF16 ? Format::kF16 : Format::kBF16);
  const bool q8 = model.format == Format::kQ8 && model.out == DType::kBF16 && begun == 80;
  if (!test::thorough() && !alike && !q8) return;
  for (const auto& device : test::test_devices()) {
    if (device->kind() == DeviceKind::kCpu && model.out == DType::kF16) continue;
    check(*device, model, begun,
          {{{20, 30, true, 2}, begun, tokens},
           {{8, 30, true, 3, KvScore::kSnapMax}, begun, tokens},
           {{8, 30, true, 0, KvScore::kSnapMean}, begun, tokens - 3},
           {{20, 9, false}, begun, 9},
           {{7, 20, true, 0, KvScore::kRandom, 5}, begun, 1}},
          begun == 80, 7, true, 0);
  }
}

KvBudget random_budget(std::mt19937_64& random, int64_t prompt, int64_t tokens, int64_t steps) {
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  KvBudget budget;
  budget.recent = 1 + below(prompt + steps - 1);
  budget.kept = below(prompt + steps - budget.recent);
  budget.by_score = below(5) > 0;
  if (!budget.by_score) return budget;
  budget.first = below(3) == 0 ? below(budget.kept + 1) : 0;
  budget.score = static_cast<KvScore>(below(4));
  if (budget.random()) budget.seed = random();
  if (budget.snaps() && budget.scored_from(prompt) < prompt - tokens) {
    budget.score = KvScore::kAttention;
  }
  return budget;
}

// With other numbers in every run where all bits are the same: elsewhere scores that are nearly
// equal would be found sometimes, of which either may stay.
TEST_CASE("prompts of random lengths behind shared beginnings are those as a whole") {
  for (const auto& device : test::test_devices()) {
    const bool cpu = device->kind() == DeviceKind::kCpu;
    const unsigned seed = cpu ? test::random_seed() : 17;
    INFO("SPILLWAY_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    for (int64_t turn = 0; turn < scaled(12, 2); ++turn) {
      INFO("turn " << turn);
      const auto any = [&](std::initializer_list<Model> models) {
        return models.begin()[random() % models.size()];
      };
      Model model = any({{4, 2, 16}, {6, 2, 80}, {4, 1, 64}, {3, 3, 5}});
      const Format formats[] = {Format::kF32, Format::kBF16, Format::kF16, Format::kQ4,
                                Format::kQ8};
      model.format = formats[random() % 4];
      if (random() % 2 == 0) model.out = DType::kBF16;
      const auto begun =
          static_cast<int64_t>(1 + random() % static_cast<uint64_t>(scaled(20, 5))) * 16;
      std::vector<Sequence> sequences;
      for (int i = 0; i < 4; ++i) {
        const auto tokens =
            static_cast<int64_t>(1 + random() % static_cast<uint64_t>(scaled(300, 60)));
        sequences.push_back({random_budget(random, begun + tokens, tokens, 5), begun, tokens});
      }
      add_others(&sequences);
      check(*device, model, begun, sequences, random() % 2 == 0, random(), false, 5);
    }
  }
}

// More than go to a device as parameters of a kernel.
TEST_CASE("many prompts share one beginning in a call", "[sanitizer]") {
  std::vector<Sequence> sequences;
  std::mt19937_64 random(3);
  for (int64_t i = 0; i < 45; ++i) {
    const int64_t tokens = 1 + i % 3;
    sequences.push_back({random_budget(random, 32 + tokens, tokens, 1), 32, tokens});
  }
  add_others(&sequences);
  for (const auto& device : test::test_devices()) {
    check(*device, {2, 1, 8}, 32, sequences, device->kind() != DeviceKind::kCpu, 8, true, 1);
  }
}

// More keys than the scratch of a thread holds at once: scores come from a second pass, those of
// the beginning from the first one.
TEST_CASE("long prompts behind a shared beginning are those as a whole", "[slow]") {
  if (test::emulated()) return;
  Model model{2, 1, 256, Format::kBF16};
  model.out = GENERATE(DType::kF32, DType::kBF16);
  for (const auto& device : test::test_devices()) {
    if (!test::thorough() && device->kind() != DeviceKind::kCpu) continue;
    check(*device, model, 16 * 63,
          {{{300, 400, true}, 16 * 63, 700},
           {{900, 400, true, 0, KvScore::kSnapMean}, 16 * 63, 640},
           {{800, 40, false}, 16 * 63, 650}},
          true, 9, false, model.out == DType::kF32 ? 1 : 0);
  }
}

TEST_CASE("a shared beginning leaves all bits as they are with every set of instructions") {
  const auto device = open_cpu_device(2).value();
  const auto score = GENERATE(KvScore::kAttention, KvScore::kSnapMax, KvScore::kRandom);
  test::for_each_instruction_set([&] {
    for (const Format format : {Format::kF32, Format::kBF16, Format::kQ4, Format::kQ8}) {
      check(*device, {6, 2, 80, format}, 80, {{{20, 30, true, 2, score, 4}, 80, 75}}, true, 10,
            false);
    }
  });
}

}  // namespace
}  // namespace spillway::attention_beginning_test
