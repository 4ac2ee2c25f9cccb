#include "server/cli/batch/workload_file.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/server/api/api_support.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tiny_shape.h"

namespace spillway::workload_file_test {
namespace {

struct Fixture {
  Result<std::vector<RequestGroup>> read(const std::string& text) {
    std::ofstream(path) << text;
    return read_workload(path, context);
  }
  std::string message(const std::string& text) {
    return std::string(read(text).status().message());
  }

  TempDirectory directory;
  const std::string path = directory / "workload.jsonl";
  Tokenizer tokenizer = byte_tokenizer();
  ModelShape shape = [] {
    ModelShape tiny = test::tiny_shape();
    tiny.vocabulary = 300;
    return tiny;
  }();
  ApiContext context = fake_context(shape, &tokenizer);
};

TEST_CASE_METHOD(Fixture, "lengths and lines of a batch become groups") {
  const auto groups = read(
      "{\"prompt_tokens\": 20, \"new_tokens\": 5, \"count\": 7}\r\n"
      "\n"
      "{\"prompt\": [1, 2, 3], \"max_tokens\": 9, \"n\": 2}\n"
      "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\","
      " \"body\": {\"prompt\": [[4, 5, 6], [7]], \"max_tokens\": 9}}\n"
      "{\"prompt_tokens\": 20, \"new_tokens\": 5}\n"
      "{\"prompt\": \"abc\", \"max_tokens\": 2}\n"
      "{\"prompt\": [1, 2, 3], \"max_tokens\": 9, \"kv_rule\": \"window\"}\n"
      "{\"prompt\": [1, 2, 4], \"max_tokens\": 9, \"kv_rule\": \"window\"}\n"
      "{\"prompt\": [1, 2, 3], \"max_tokens\": 9, \"kv_rule\": \"window\", \"kv_recent\": 2}");
  INFO(groups.status().message());
  REQUIRE(groups.ok());
  REQUIRE(groups->size() == 6);
  const auto is = [&](size_t i, int64_t prompt, int64_t more, int64_t count) {
    const RequestGroup& group = groups.value()[i];
    CHECK(group.prompt_tokens == prompt);
    CHECK(group.new_tokens == more);
    CHECK(group.count == count);
  };
  is(0, 20, 5, 8);
  is(1, 3, 9, 3);
  is(2, 1, 9, 1);
  is(3, 4, 2, 1);  // One token a byte, and the one at the start
  is(4, 3, 9, 2);  // Alike in length, but not in what they keep
  is(5, 3, 9, 1);
  for (size_t i = 0; i < 4; ++i) CHECK(groups.value()[i].kv.empty());
  CHECK(groups.value()[4].kv.kind == KvRuleKind::kWindow);
  CHECK(groups.value()[5].kv.recent->rows == 2);
}

TEST_CASE_METHOD(Fixture, "a workload that cannot be read is refused by line") {
  const std::string good = "{\"prompt_tokens\": 20, \"new_tokens\": 5}\n";
  CHECK_THAT(message(good + "not json\n"), Catch::Contains(path + ": line 2: "));
  CHECK_THAT(message(good + good + "{\"prompt_tokens\": 20}"), Catch::Contains("line 3: "));
  CHECK_THAT(message("{\"prompt_tokens\": 0, \"new_tokens\": 5}"),
             Catch::Contains("prompt_tokens"));
  CHECK_THAT(message("{\"prompt_tokens\": 2, \"new_tokens\": 1.5}"), Catch::Contains("new_tokens"));
  CHECK_THAT(message("{\"prompt_tokens\": 2, \"new_tokens\": 1, \"cuont\": 3}"),
             Catch::Contains("cuont"));
  CHECK_THAT(message("{\"prompt_tokens\": 60, \"new_tokens\": 6}"),
             Catch::Contains("60 + 6 tokens are more than the model's 64 positions"));
  CHECK(read("{\"prompt_tokens\": 60, \"new_tokens\": 5}").ok());
  CHECK_THAT(message("{\"prompt_tokens\": 2, \"new_tokens\": 1, \"count\": 16777216}\n" + good),
             Catch::Contains("line 2: more than 16777216 requests"));
  CHECK_THAT(message("{\"prompt\": [1000], \"max_tokens\": 3}"), Catch::Contains("line 1: "));
  CHECK_THAT(message("\n \n"), Catch::Contains("no request"));
  context.tokenizer = nullptr;
  CHECK_THAT(message("{\"prompt\": \"abc\"}"), Catch::Contains("tokenizer"));
  CHECK(read_workload("/nowhere/file", context).status().message().find("/nowhere/file") !=
        std::string_view::npos);
}

TEST_CASE("many lengths become few, rounded up and never longer than the longest") {
  constexpr uint64_t kSeed = 29;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 100; ++round) {
    std::vector<RequestGroup> groups(1 + random() % 500);
    const auto length = [&](int most) {
      return static_cast<int64_t>(1 + random() % static_cast<uint64_t>(1 + random() % most));
    };
    int64_t requests = 0, tokens = 0, longest = 0, shared = 0;
    for (RequestGroup& group : groups) {
      group = {length(2000), length(500), length(9)};
      group.shared_tokens = length(2000) % group.prompt_tokens;
      shared += group.count * group.shared_tokens;
      if (round % 2 == 1 && group.count > 4) group.kv.kind = KvRuleKind::kH2o;
      requests += group.count;
      tokens += group.count * group.new_tokens;
      longest = std::max(longest, group.prompt_tokens + group.new_tokens);
    }
    INFO("seed " << kSeed << ", round " << round);
    const size_t most = 1 + random() % 100;
    const auto few = few_groups(groups, most);
    CHECK(few.size() <= most);
    if (groups.size() <= most) CHECK(few.size() == groups.size());
    int64_t few_requests = 0, few_tokens = 0, few_longest = 0, few_shared = 0, changes = 0;
    for (const RequestGroup& group : few) {
      CHECK(group.prompt_tokens >= 1);
      CHECK(group.computed_tokens() >= 1);
      few_shared += group.count * group.shared_tokens;
      few_requests += group.count;
      few_tokens += group.count * group.new_tokens;
      few_longest = std::max(few_longest, group.prompt_tokens + group.new_tokens);
    }
    // Each rule's parts are together.
    for (size_t i = 1; i < few.size(); ++i) changes += few[i].kv != few[i - 1].kv;
    if (groups.size() > most) CHECK(changes <= round % 2);
    CHECK(few_requests == requests);
    CHECK(few_tokens >= tokens);
    // No more is shared than was.
    CHECK(few_shared <= shared);
    if (groups.size() <= most) CHECK(few_shared == shared);
    CHECK(few_longest <= longest);
    // Means are rounded up: a token each at most.
    CHECK(few_tokens <= tokens + requests);
  }
}

}  // namespace
}  // namespace spillway::workload_file_test
