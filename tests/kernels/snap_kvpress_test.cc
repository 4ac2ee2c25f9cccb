// Rule snap against NVIDIA's kvpress: which rows stay after a prompt, whole and in chunks, and the
// scores of those before the window of queries (tests/golden/snap_kvpress.json,
// scripts/oracle/make_snap_golden.py).
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/json_file.h"
#include "tests/support/kept_rows.h"
#include "tests/support/paged_attention.h"
#include "tests/support/places.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::snap_kvpress_test {
namespace {

using test::DeviceArray;

struct Shape {
  int64_t heads, kv_heads, size;
  int64_t width() const { return (heads + 2 * kv_heads) * size; }
};

void check_case(Device& device, const nlohmann::json& one, int64_t chunk) {
  const auto stream = device.new_stream("test");
  const Shape s{one["heads"], one["kv_heads"], one["head_size"]};
  const int64_t prompt = one["prompt"], window = prompt < 256 ? 32 : 64;
  const KvBudget budget{one["recent"], one["heavy"], true, 0, KvScore::kSnapMean};
  const KvLayout layout{s.kv_heads, s.size, Format::kF32};
  const KvStateLayout states{s.kv_heads, budget};
  const DeviceArray<std::byte> kv(device, *stream,
                                  std::vector<std::byte>(layout.sequence_bytes(prompt + 1)));
  const DeviceArray<std::byte> state(device, *stream,
                                     std::vector<std::byte>(states.chunked_bytes(prompt)));
  const std::vector<float> rows = test::scripts_numbers(one["seed"], prompt * s.width());
  for (int64_t position = 0; position < prompt; position += chunk) {
    const int64_t tokens = std::min(chunk, prompt - position);
    const auto begin = rows.begin() + position * s.width();
    const DeviceArray<float> qkv(device, *stream,
                                 std::vector<float>(begin, begin + tokens * s.width()));
    const DeviceArray<float> out(
        device, *stream, std::vector<float>(static_cast<size_t>(tokens * s.heads * s.size)));
    const AttentionItem item{0, tokens, position, kv.data(), budget, state.data(), prompt};
    test::attention_both_ways(device, *stream,
                              {.qkv = qkv.matrix(tokens, s.width()),
                               .items = std::span(&item, 1),
                               .heads = s.heads,
                               .kv = layout,
                               .out = out.matrix(tokens, s.heads * s.size)});
    REQUIRE(stream->record().wait().ok());
  }
  const std::vector<std::byte> kv_bytes = kv.read();
  std::vector<std::byte> state_bytes = state.read();
  // Theirs are means over the window's queries and the heads, ours are sums.
  const auto weights = static_cast<double>(window * (s.heads / s.kv_heads));
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    INFO("KV head " << head);
    const auto got =
        test::read_kept_rows(layout, budget, prompt, kv_bytes.data(), state_bytes.data(), head);
    const auto index = static_cast<size_t>(head);
    const std::vector<int64_t> stays = one["positions"][index];
    REQUIRE(got.size() == stays.size());
    size_t scores = 0;
    for (size_t i = 0; i < stays.size(); ++i) {
      REQUIRE(got[i].position == stays[i]);
      if (stays[i] >= prompt - window) continue;
      const double theirs = one["scores"][index][static_cast<size_t>(stays[i])];
      REQUIRE(got[i].score / weights == Approx(theirs).epsilon(1e-5));
      ++scores;
    }
    REQUIRE(scores == stays.size() - static_cast<size_t>(window));
    REQUIRE(scores > 0);
  }
}

TEST_CASE("rule snap keeps and scores what kvpress does") {
  const auto cases = test::read_json(test::source_directory() + "/tests/golden/snap_kvpress.json");
  REQUIRE(cases.size() >= 5);
  for (const auto& device : test::test_devices()) {
    for (const auto& one : cases) {
      const int64_t prompt = one["prompt"];
      for (const int64_t chunk : {prompt, int64_t{90}}) {
        INFO(device->name() << ", prompt " << prompt << ", chunks of " << chunk);
        check_case(*device, one, chunk);
      }
    }
  }
}

}  // namespace
}  // namespace spillway::snap_kvpress_test
