// What a KV rule costs in attention, against attention that keeps everything: of prompts (scores
// and selection) and of decode steps (scores, selection, one moved row), at the shape of opt-6.7b.
// And what heads that share keys and values cost, against heads with keys of their own over a cache
// of the same size, and what a block table costs whose blocks lie in no order. And the rate of a
// prompt's chunks behind cached positions, by float32 products and by pairs of bf16. Processor time
// of all threads, medians of turns in which all variants run, since machines are busy. Usage:
// attention_bench [SEQUENCES], attention_bench groups [SEQUENCES], or attention_bench chunks
// [TOKENS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/random_data.h"

namespace spillway {
namespace {

constexpr int64_t kHeads = 32, kHeadSize = 128;
constexpr int kTurns = 9;

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Variant {
  std::string name;
  KvBudget budget;
  std::vector<double> seconds = {};
  double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

// `sequences` sequences of one layer, after a prompt.
class Layer {
 public:
  Layer(Stream& stream, int64_t sequences, int64_t prompt, const KvBudget& budget)
      : stream_(stream), prompt_(prompt), budget_(budget), qkv_(rows(sequences) * kWidth) {
    const auto noise = test::random_floats(1 << 16, 1, 0.5f);
    for (size_t i = 0; i < qkv_.size(); ++i) qkv_[i] = noise[i % noise.size()];
    out_.resize(static_cast<size_t>(rows(sequences) * kHeads * kHeadSize));
    for (int64_t i = 0; i < sequences; ++i) {
      kv_.emplace_back(layout_.sequence_bytes(budget.slots(prompt + 64)));
      state_.emplace_back(KvStateLayout{kHeads, budget}.bytes());
    }
  }

  double run_prompt() { return run(prompt_, 0); }
  double run_step(int64_t step) { return run(1, prompt_ + step); }

 private:
  static constexpr int64_t kWidth = 3 * kHeads * kHeadSize;
  int64_t rows(int64_t sequences) const { return sequences * prompt_; }

  double run(int64_t tokens, int64_t position) {
    std::vector<AttentionItem> items;
    for (size_t i = 0; i < kv_.size(); ++i) {
      items.push_back({static_cast<int64_t>(i) * tokens, tokens, position, kv_[i].data(), budget_,
                       state_[i].data()});
    }
    const int64_t all = static_cast<int64_t>(kv_.size()) * tokens;
    const auto view = [&](std::vector<float>& m, int64_t width) {
      return dense_matrix(reinterpret_cast<std::byte*>(m.data()), DType::kF32, all, width);
    };
    const double start = processor_seconds();
    attention(stream_, {.qkv = view(qkv_, kWidth),
                        .items = items,
                        .heads = kHeads,
                        .kv = layout_,
                        .out = view(out_, kHeads * kHeadSize)});
    return processor_seconds() - start;
  }

  Stream& stream_;
  const int64_t prompt_;
  const KvBudget budget_;
  const KvLayout layout_{kHeads, kHeadSize, Format::kF16};
  std::vector<float> qkv_, out_;
  std::vector<std::vector<std::byte>> kv_, state_;
};

void compare(Stream& stream, int64_t sequences, int64_t prompt) {
  const int64_t tenth = prompt / 10;
  std::vector<Variant> prompts = {{"full", {}},
                                  {"h2o 20 %", {tenth, tenth, true}},
                                  {"window 20 %", {2 * tenth, 0, false}},
                                  {"h2o 20 %, 4 first", {tenth, tenth, true, 4}},
                                  {"snap 20 %", {tenth, tenth, true, 0, KvScore::kSnapMean}},
                                  {"snap 20 %, max", {tenth, tenth, true, 0, KvScore::kSnapMax}},
                                  {"random 20 %", {tenth, tenth, true, 0, KvScore::kRandom}}};
  std::vector<Variant> steps = prompts;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t v = 0; v < prompts.size(); ++v) {
      Layer layer(stream, sequences, prompt, prompts[v].budget);
      prompts[v].seconds.push_back(layer.run_prompt());
      // Enough steps that the clock's grain does not matter.
      double seconds = 0;
      for (int64_t step = 0; step < 16; ++step) seconds += layer.run_step(step);
      steps[v].seconds.push_back(seconds / 16);
    }
  }
  const double flops = 4.0 * static_cast<double>(sequences * kHeads * kHeadSize) *
                       static_cast<double>(prompt * (prompt + 1) / 2);
  for (size_t v = 0; v < prompts.size(); ++v) {
    const double rows = static_cast<double>(prompts[v].budget.attended(prompt + 8) * sequences);
    std::printf(
        "%6lld  %-18s %9.2f ms  %5.2fx  %6.1f GFLOP/s   %8.3f ms  %6.1f ns a row and head\n",
        static_cast<long long>(prompt), prompts[v].name.c_str(), prompts[v].median() * 1e3,
        prompts[v].median() / prompts[0].median(), flops / prompts[v].median() / 1e9,
        steps[v].median() * 1e3, steps[v].median() * 1e9 / rows / kHeads);
  }
}

// Query heads over a cache of `kv_heads`: the cache is what a decode step reads.
struct Grouped {
  const char* name;
  int64_t heads, kv_heads, head_size;
};

// One layer of `sequences` sequences with `cached` rows each.
class GroupedLayer {
 public:
  GroupedLayer(Device& device, Stream& stream, const Grouped& shape, Format format,
               int64_t sequences, int64_t cached, int64_t tokens, DType out_dtype = DType::kF32)
      : stream_(stream),
        shape_(shape),
        layout_{shape.kv_heads, shape.head_size, format},
        sequences_(sequences),
        cached_(cached),
        tokens_(tokens),
        out_dtype_(out_dtype),
        qkv_(static_cast<size_t>(sequences * tokens * width())),
        out_(static_cast<size_t>(sequences * tokens * shape.heads * shape.head_size)) {
    const auto noise = test::random_floats(1 << 16, 1, 0.5f);
    for (size_t i = 0; i < qkv_.size(); ++i) qkv_[i] = noise[i % noise.size()];
    const size_t bytes = layout_.sequence_bytes(cached + tokens) * static_cast<size_t>(sequences);
    kv_ = device.allocate(Memory::kDevice, bytes).value();
    device.prefault(kv_);
  }
  // From now on the sequences' blocks are any of those that there are.
  void put_under_tables() {
    for (size_t at = 0; at < kv_.bytes(); at += layout_.block_bytes()) {
      blocks_.push_back(kv_.data() + at);
    }
    std::shuffle(blocks_.begin(), blocks_.end(), std::mt19937_64(1));
  }
  double run() {
    std::vector<AttentionItem> items;
    for (int64_t i = 0; i < sequences_; ++i) {
      const int64_t prompt = tokens_ > 1 ? cached_ + tokens_ : 0;
      const int64_t blocks = kv_blocks(cached_ + tokens_);
      const KvBlocks kv = blocks_.empty()
                              ? KvBlocks(kv_.data() + i * blocks * layout_.block_bytes())
                              : KvBlocks(blocks_.data() + i * blocks);
      items.push_back({i * tokens_, tokens_, cached_, kv, {}, nullptr, prompt});
    }
    const auto view = [&](std::vector<float>& m, DType dtype, int64_t columns) {
      return dense_matrix(reinterpret_cast<std::byte*>(m.data()), dtype, sequences_ * tokens_,
                          columns);
    };
    const double start = processor_seconds();
    attention(stream_, {.qkv = view(qkv_, DType::kF32, width()),
                        .items = items,
                        .heads = shape_.heads,
                        .kv = layout_,
                        .out = view(out_, out_dtype_, shape_.heads * shape_.head_size)});
    return processor_seconds() - start;
  }
  double cache_bytes() const {
    return static_cast<double>(layout_.sequence_bytes(cached_)) * static_cast<double>(sequences_);
  }

 private:
  int64_t width() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size; }

  Stream& stream_;
  const Grouped shape_;
  const KvLayout layout_;
  const int64_t sequences_, cached_, tokens_;
  const DType out_dtype_;
  std::vector<float> qkv_, out_;
  Buffer kv_;
  std::vector<std::byte*> blocks_;  // Of the sequences in turn; none: the caches are in one piece
};

double median(std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void compare_groups(Device& device, Stream& stream, int64_t sequences) {
  constexpr Grouped kShapes[] = {{"Llama-3.2-1B 32/8 of 64", 32, 8, 64},
                                 {"  its KV heads alone", 8, 8, 64},
                                 {"Qwen2.5-3B 16/2 of 128", 16, 2, 128},
                                 {"  its KV heads alone", 2, 2, 128}};
  for (const Format format :
       {Format::kF32, Format::kBF16, Format::kF16, Format::kQ8, Format::kQ4}) {
    std::vector<GroupedLayer> steps, tables, prompts;
    for (const Grouped& shape : kShapes) {
      steps.emplace_back(device, stream, shape, format, sequences, 1024, 1);
      tables.emplace_back(device, stream, shape, format, sequences, 1024, 1);
      tables.back().put_under_tables();
      prompts.emplace_back(device, stream, shape, format, 1, 0, 512);
    }
    std::vector<double> step_seconds[std::size(kShapes)], table_seconds[std::size(kShapes)],
        prompt_seconds[std::size(kShapes)];
    for (int turn = 0; turn < kTurns; ++turn) {
      for (size_t s = 0; s < std::size(kShapes); ++s) {
        step_seconds[s].push_back(steps[s].run());
        table_seconds[s].push_back(tables[s].run());
        prompt_seconds[s].push_back(prompts[s].run());
      }
    }
    for (size_t s = 0; s < std::size(kShapes); ++s) {
      const double step = median(step_seconds[s]), table = median(table_seconds[s]);
      std::printf(
          "%-5s  %-24s %8.3f ms a step  %6.2f GB/s a core   block table %8.3f ms  %5.2fx   prompt "
          "of 512 %8.2f ms\n",
          std::string(format_name(format)).c_str(), kShapes[s].name, step * 1e3,
          steps[s].cache_bytes() / step / 1e9, table * 1e3, table / step,
          median(prompt_seconds[s]) * 1e3);
    }
  }
}

void compare_chunks(Device& device, Stream& stream, int64_t tokens) {
  constexpr Grouped kShapes[] = {{"Llama-3.2-1B 32/8 of 64", 32, 8, 64},
                                 {"Qwen2.5-3B 16/2 of 128", 16, 2, 128}};
  for (const Grouped& shape : kShapes) {
    for (const int64_t cached : {0, 2048, 16384, 65536}) {
      std::printf("%s, %6lld cached:", shape.name, static_cast<long long>(cached));
      for (const DType out : {DType::kF32, DType::kBF16}) {
        GroupedLayer layer(device, stream, shape, Format::kBF16, 1, cached, tokens, out);
        std::vector<double> seconds;
        for (int turn = 0; turn < (cached > 10000 ? 3 : kTurns); ++turn) {
          seconds.push_back(layer.run());
        }
        const double pairs = static_cast<double>(tokens * cached + tokens * (tokens + 1) / 2);
        std::printf("  out %s %7.1f GFLOP/s a core", out == DType::kF32 ? "f32" : "bf16",
                    4.0 * static_cast<double>(shape.heads * shape.head_size) * pairs /
                        median(seconds) / 1e9);
      }
      std::printf("\n");
    }
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  const bool groups = argc > 1 && std::string(argv[1]) == "groups";
  const auto device = spillway::open_cpu_device(0).value();
  const auto stream = device->new_stream("bench");
  if (argc > 1 && std::string(argv[1]) == "chunks") {
    spillway::compare_chunks(*device, *stream, argc > 2 ? std::max(1, std::atoi(argv[2])) : 512);
    return 0;
  }
  if (groups) {
    const int64_t sequences = argc > 2 ? std::max(1, std::atoi(argv[2])) : 32;
    std::printf("%lld sequences with 1,024 cached rows; processor time of all threads\n",
                static_cast<long long>(sequences));
    spillway::compare_groups(*device, *stream, sequences);
    return 0;
  }
  const int64_t sequences = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  std::printf("%lld sequences, 32 heads of 128, KV f16; processor time of all threads\n",
              static_cast<long long>(sequences));
  std::printf(
      "prompt  rule                attention of the prompt                 one decode step\n");
  for (const int64_t prompt : {128, 512, 1024, 2000}) {
    spillway::compare(*stream, sequences, prompt);
  }
  return 0;
}
