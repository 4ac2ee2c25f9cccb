// What a KV rule costs in attention, against attention that keeps everything: of prompts (scores
// and selection) and of decode steps (scores, selection, one moved row), at the shape of opt-6.7b.
// Processor time of all threads, medians of turns in which all variants run, since machines are
// busy. Usage: attention_bench [SEQUENCES]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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
  std::vector<Variant> prompts = {
      {"full", {}}, {"h2o 20 %", {tenth, tenth, true}}, {"window 20 %", {2 * tenth, 0, false}}};
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
        "%6lld  %-12s %9.2f ms  %5.2fx  %6.1f GFLOP/s   %8.3f ms  %6.1f ns a row and head\n",
        static_cast<long long>(prompt), prompts[v].name.c_str(), prompts[v].median() * 1e3,
        prompts[v].median() / prompts[0].median(), flops / prompts[v].median() / 1e9,
        steps[v].median() * 1e3, steps[v].median() * 1e9 / rows / kHeads);
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  const int64_t sequences = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  const auto device = spillway::open_cpu_device(0).value();
  const auto stream = device->new_stream("bench");
  std::printf("%lld sequences, 32 heads of 128, KV f16; processor time of all threads\n",
              static_cast<long long>(sequences));
  std::printf("prompt  rule          attention of the prompt                 one decode step\n");
  for (const int64_t prompt : {128, 512, 1024, 2000}) {
    spillway::compare(*stream, sequences, prompt);
  }
  return 0;
}
