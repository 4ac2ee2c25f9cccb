// Decode steps with drafts on every device: each of their tokens has the bits, and leaves the
// cache, as if it had come alone, whatever stood in the cache's slots behind it, and beside other
// items.
//
// SPILLWAY_EMULATION_SEED: 1
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "kernels/ops.h"
#include "tests/support/attention_shape.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::attention_draft_test {
namespace {

using test::DeviceArray;
using test::random_floats;
using Model = test::AttentionShape;

// A sequence of a prompt and some steps; its cache has room for all of them and two blocks more.
class Sequence {
 public:
  Sequence(Device& device, Stream& stream, const Model& model, int64_t prompt, int64_t steps,
           uint64_t seed)
      : device_(device),
        stream_(stream),
        model_(model),
        prompt_(prompt),
        qkv_(random_floats((prompt + steps) * model.width(), seed)),
        // Slots that nobody has written hold NaN in every float format.
        cache_(device, stream,
               std::vector<std::byte>(model.layout().sequence_bytes(prompt + steps + 32),
                                      std::byte{0xff})) {
    call({item(0, prompt_, prompt_)});
  }

  AttentionItem item(int64_t position, int64_t tokens, int64_t prompt = 0) const {
    return {.tokens = tokens, .position = position, .kv = cache_.data(), .prompt = prompt};
  }
  // The item's outputs, which come from this sequence's rows at its position.
  std::vector<std::byte> step(int64_t position, int64_t tokens) {
    return call({item(position, tokens)});
  }
  // Rows of a wrong draft: those of other positions.
  void guess_wrong(int64_t position, int64_t tokens) { call({item(position, tokens)}, 1); }

  std::vector<float> rows(int64_t position, int64_t tokens) const {
    const auto from = qkv_.begin() + position * model_.width();
    return {from, from + tokens * model_.width()};
  }
  std::vector<std::byte> cache() const { return cache_.read(); }
  int64_t prompt() const { return prompt_; }

 private:
  std::vector<std::byte> call(const std::vector<AttentionItem>& items, int64_t shift = 0) {
    const int64_t tokens = items[0].tokens;
    const DeviceArray<float> in(device_, stream_, rows(items[0].position - shift, tokens));
    const DeviceArray<std::byte> out(
        device_, stream_,
        std::vector<std::byte>(static_cast<size_t>(tokens * model_.out_width()) *
                               dtype_bytes(model_.out)));
    attention(stream_, {.qkv = in.matrix(tokens, model_.width()),
                        .items = items,
                        .heads = model_.heads,
                        .kv = model_.layout(),
                        .out = dense_matrix(out.data(), model_.out, tokens, model_.out_width())});
    return out.read();
  }

  Device& device_;
  Stream& stream_;
  const Model model_;
  const int64_t prompt_;
  const std::vector<float> qkv_;
  const DeviceArray<std::byte> cache_;
};

const Model kModels[] = {
    {2, 2, 16, Format::kF32},  {4, 2, 8, Format::kF16}, {8, 1, 64, Format::kBF16, DType::kBF16},
    {6, 2, 128, Format::kF16}, {4, 4, 64, Format::kQ4}, {5, 1, 24, Format::kBF16},
};

TEST_CASE("the tokens of a draft have the bits of steps one by one") {
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    for (const Model& model : kModels) {
      // In one split of a device's blocks, across its end, at the end of a KV block, and far on.
      for (const int64_t prompt : {3, 16, 250, 509}) {
        // (An emulated device takes long for the rows of one that is far on.)
        if (!test::thorough() && prompt == 509 && model.format != Format::kQ4) continue;
        constexpr int64_t kDraft = 9;
        INFO(device->name() << ", " << model.name() << ", prompt " << prompt);
        Sequence alone(*device, *stream, model, prompt, kDraft, 5);
        Sequence drafted(*device, *stream, model, prompt, kDraft, 5);
        std::vector<std::byte> expected;
        for (int64_t i = 0; i < kDraft; ++i) {
          const auto one = alone.step(prompt + i, 1);
          expected.insert(expected.end(), one.begin(), one.end());
        }
        REQUIRE(drafted.step(prompt, kDraft) == expected);
        REQUIRE(drafted.cache() == alone.cache());
      }
    }
  }
}

TEST_CASE("the rows of a wrong draft change nothing of what follows") {
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    for (const Model& model : kModels) {
      constexpr int64_t kPrompt = 27, kSteps = 12;
      INFO(device->name() << ", " << model.name());
      Sequence alone(*device, *stream, model, kPrompt, kSteps, 6);
      Sequence drafted(*device, *stream, model, kPrompt, kSteps, 6);
      for (int64_t i = 0; i < kSteps; i += 3) {
        drafted.guess_wrong(kPrompt + i, std::min<int64_t>(8, kSteps - i));
        std::vector<std::byte> expected;
        for (int64_t token = 0; token < 3; ++token) {
          const auto one = alone.step(kPrompt + i + token, 1);
          expected.insert(expected.end(), one.begin(), one.end());
        }
        REQUIRE(drafted.step(kPrompt + i, 3) == expected);
      }
      REQUIRE(drafted.cache() == alone.cache());
    }
  }
}

TEST_CASE("drafts stand beside prompts, steps and each other, under block tables") {
  for (const auto& device : test::test_devices()) {
    const auto stream = device->new_stream("test");
    for (const Model& model : kModels) {
      INFO(device->name() << ", " << model.name());
      struct Part {
        std::unique_ptr<Sequence> alone, beside;
        int64_t position, tokens;
      };
      std::vector<Part> parts;
      const auto add = [&](int64_t prompt, int64_t tokens, uint64_t seed) {
        const auto make = [&] {
          return std::make_unique<Sequence>(*device, *stream, model, prompt, tokens, seed);
        };
        parts.push_back({make(), make(), prompt, tokens});
      };
      add(40, 5, 1);
      add(300, 1, 2);
      add(17, 3, 3);
      std::vector<AttentionItem> items;
      std::vector<float> rows;
      std::vector<std::byte> expected;
      std::vector<std::vector<std::byte*>> tables;
      const size_t block = model.layout().block_bytes();
      for (Part& part : parts) {
        AttentionItem item = part.beside->item(part.position, part.tokens);
        item.first_row = static_cast<int64_t>(rows.size()) / model.width();
        std::vector<std::byte*>& table = tables.emplace_back();
        for (int64_t i = 0; i < kv_blocks(part.position + part.tokens); ++i) {
          table.push_back(item.kv.block(i, block));
        }
        item.kv = KvBlocks(table.data());
        items.push_back(item);
        const auto own = part.beside->rows(part.position, part.tokens);
        rows.insert(rows.end(), own.begin(), own.end());
        const auto out = part.alone->step(part.position, part.tokens);
        expected.insert(expected.end(), out.begin(), out.end());
      }
      const auto count = static_cast<int64_t>(rows.size()) / model.width();
      const DeviceArray<float> in(*device, *stream, rows);
      const DeviceArray<std::byte> out(*device, *stream, std::vector<std::byte>(expected.size()));
      attention(*stream, {.qkv = in.matrix(count, model.width()),
                          .items = items,
                          .heads = model.heads,
                          .kv = model.layout(),
                          .out = dense_matrix(out.data(), model.out, count, model.out_width())});
      REQUIRE(out.read() == expected);
      for (const Part& part : parts) REQUIRE(part.beside->cache() == part.alone->cache());
    }
  }
}

}  // namespace
}  // namespace spillway::attention_draft_test
