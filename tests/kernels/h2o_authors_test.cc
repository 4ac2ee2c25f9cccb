// Rule h2o against the code of its authors: which rows stay after a prompt and after each decode
// step, and their scores (tests/golden/h2o_authors.json,
// scripts/oracle/make_h2o_authors_golden.py).
#include <catch2/catch.hpp>

#include "kernels/ops.h"
#include "tests/support/json_file.h"
#include "tests/support/kept_rows.h"
#include "tests/support/paged_attention.h"
#include "tests/support/places.h"
#include "tests/support/random_data.h"
#include "tests/support/test_devices.h"

namespace spillway::h2o_authors_test {
namespace {

using test::DeviceArray;

void check_case(Device& device, const nlohmann::json& one) {
  const auto stream = device.new_stream("test");
  const int64_t heads = one["heads"], size = one["head_size"], prompt = one["prompt"];
  const int64_t positions = prompt + one["steps"].get<int64_t>();
  const KvBudget budget{one["recent"], one["heavy"], true};
  const KvLayout layout{heads, size, Format::kF32};
  const DeviceArray<std::byte> kv(
      device, *stream, std::vector<std::byte>(layout.sequence_bytes(budget.slots(positions))));
  const DeviceArray<std::byte> state(device, *stream,
                                     std::vector<std::byte>(KvStateLayout{heads, budget}.bytes()));
  const std::vector<float> rows = test::scripts_numbers(one["seed"], positions * 3 * heads * size);
  int64_t position = 0;
  for (const nlohmann::json& kept : one["kept"]) {
    const int64_t tokens = position == 0 ? prompt : 1;
    const int64_t width = 3 * heads * size;
    const auto begin = rows.begin() + position * width;
    const DeviceArray<float> qkv(device, *stream,
                                 std::vector<float>(begin, begin + tokens * width));
    const DeviceArray<float> out(device, *stream,
                                 std::vector<float>(static_cast<size_t>(tokens * heads * size)));
    const AttentionItem item{0, tokens, position, kv.data(), budget, state.data()};
    test::attention_both_ways(device, *stream,
                              {.qkv = qkv.matrix(tokens, width),
                               .items = std::span(&item, 1),
                               .heads = heads,
                               .kv = layout,
                               .out = out.matrix(tokens, heads * size)});
    position += tokens;
    const std::vector<std::byte> kv_bytes = kv.read();
    std::vector<std::byte> state_bytes = state.read();
    for (int64_t head = 0; head < heads; ++head) {
      INFO("head " << head << " after " << position << " positions");
      const auto got =
          test::read_kept_rows(layout, budget, position, kv_bytes.data(), state_bytes.data(), head);
      const auto index = static_cast<size_t>(head);
      const std::vector<int64_t> theirs = kept["positions"][index];
      REQUIRE(got.size() == theirs.size());
      for (size_t i = 0; i < theirs.size(); ++i) {
        REQUIRE(got[i].position == theirs[i]);
        // The file has six digits behind the point.
        REQUIRE(got[i].score ==
                Approx(kept["scores"][index][i].get<double>()).margin(1e-5).epsilon(1e-5));
      }
    }
  }
  REQUIRE(position == positions);
}

TEST_CASE("rule h2o keeps and scores what its authors' code does") {
  const auto cases = test::read_json(test::source_directory() + "/tests/golden/h2o_authors.json");
  REQUIRE(cases.size() >= 5);
  for (const auto& device : test::test_devices()) {
    for (const auto& one : cases) {
      INFO(device->name() << ", " << one["heavy"] << " heavy, " << one["recent"]
                          << " recent, prompt " << one["prompt"]);
      check_case(*device, one);
    }
  }
}

}  // namespace
}  // namespace spillway::h2o_authors_test
