#include "server/cli/batch/workload_sample.h"

#include <catch2/catch.hpp>

#include "tests/server/api/api_support.h"
#include "tests/support/tiny_shape.h"

namespace spillway::workload_sample_test {
namespace {

void add(WorkloadSample& sample, const std::string& text) {
  InputLine line;
  line.text = text;
  sample.add(line, 0);
}

TEST_CASE("a sample of lines stands for all of them") {
  const ModelShape shape = test::make_shape({.vocabulary = 1000, .positions = 512});
  const ApiContext context = fake_context(shape, nullptr);
  WorkloadSample sample(context, /*shares_beginnings=*/false);
  CHECK(sample.groups(100).empty());
  for (int i = 0; i < 4; ++i) add(sample, R"({"prompt":[1,2,3],"max_tokens":5})");
  add(sample, "no JSON");
  CHECK_FALSE(sample.full());
  const std::vector<RequestGroup> groups = sample.groups(100);
  int64_t count = 0;
  for (const RequestGroup& group : groups) {
    CHECK(group.prompt_tokens == 3);
    CHECK(group.new_tokens == 5);
    count += group.count;
  }
  CHECK(count == 80);  // Four of five lines are good
  for (int i = 0; i < 2000; ++i) add(sample, "no JSON");
  CHECK(sample.full());
}

TEST_CASE("what prompts share counts once, where there is a prefix cache") {
  const ModelShape shape = test::make_shape({.vocabulary = 1000, .positions = 512});
  const ApiContext context = fake_context(shape, nullptr);
  std::string prompt = "{\"prompt\":[1";
  for (int i = 0; i < 200; ++i) prompt += ",7";
  prompt += "],\"max_tokens\":5}";
  for (const bool shares : {false, true}) {
    WorkloadSample sample(context, shares);
    add(sample, prompt);
    add(sample, prompt);
    int64_t cached = 0;
    for (const RequestGroup& group : sample.groups(2)) cached += group.shared_tokens * group.count;
    CHECK((cached > 100) == shares);
  }
}

}  // namespace
}  // namespace spillway::workload_sample_test
