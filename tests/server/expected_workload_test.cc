#include "server/expected_workload.h"

#include <catch2/catch.hpp>

#include "tests/support/tiny_shape.h"

namespace spillway::expected_workload_test {
namespace {

TEST_CASE("a workload in words") {
  const auto text = [](const std::vector<RequestGroup>& groups) { return workload_text(groups); };
  CHECK(text({{512, 128, 64}}) == "64 sequences of 512 + 128 tokens");
  CHECK(text({{512, 128, 1}}) == "a sequence of 512 + 128 tokens");
  CHECK(text({{512, 128, 0}}) == "full blocks of sequences of 512 + 128 tokens");
  CHECK(text({{100, 10, 3}, {200, 20, 1}}) == "4 sequences of 125 + 12 tokens in the mean");
}

TEST_CASE("a workload is cut to the model's positions") {
  const ModelShape shape = test::tiny_shape();  // Of 64 positions
  std::vector<RequestGroup> groups = {{1000, 1000, 1}, {60, 1000, 1}, {10, 20, 1}};
  cut_workload(shape, &groups);
  CHECK(groups[0].prompt_tokens == 63);
  CHECK(groups[0].new_tokens == 1);
  CHECK(groups[1].prompt_tokens == 60);
  CHECK(groups[1].new_tokens == 4);
  CHECK(groups[2].prompt_tokens == 10);
  CHECK(groups[2].new_tokens == 20);
}

}  // namespace
}  // namespace spillway::expected_workload_test
