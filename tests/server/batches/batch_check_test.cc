// The first look at a batch's file: what is found, how much of it, and that it can be read again.
#include "server/batches/batch_check.h"

#include <catch2/catch.hpp>

#include "tests/server/batches/batch_stores.h"

namespace spillway::batch_check_test {
namespace {

using test::batch_line;

struct Check : test::BatchStores {
  BatchCheck look(const std::string& content, int64_t lines_max = 100) {
    BatchInput input = open(content);
    return check_batch(input, "/v1/completions", context, lines_max, [] { return false; }).value();
  }
  BatchInput open(const std::string& content) {
    return BatchInput::open(files->path_of(add_file(content))).value();
  }
};

TEST_CASE("a right file is counted, and read again from its beginning") {
  Check c;
  BatchInput input = c.open("\n" + batch_line("a", {{"prompt", "x"}}) + "\n" +
                            batch_line("b", {{"prompt", "y"}, {"model", "alias"}}));
  const BatchCheck check =
      check_batch(input, "/v1/completions", c.context, 2, [] { return false; }).value();
  CHECK(check.faults.empty());
  CHECK(check.summary.rows == 2);
  CHECK(check.summary.last_row == 4);
  CHECK(check.models == std::vector<std::string>{"alias"});
  InputLine line;
  REQUIRE(input.next(&line).value());
  CHECK(line.number == 2);
}

TEST_CASE("a fault names its line and parameter") {
  Check c;
  const auto first = [&](const std::string& content) {
    const BatchCheck check = c.look(content);
    REQUIRE(check.faults.size() == 1);
    const BatchFault& fault = check.faults[0];
    CHECK_FALSE(fault.message.empty());
    return fault.code + " " + fault.param + " " + std::to_string(fault.line);
  };
  const std::string good = batch_line("a", {{"prompt", "x"}});
  CHECK(first(good + good) == "duplicate_custom_id custom_id 2");
  CHECK(first(good + batch_line("", {{"prompt", "x"}})) ==
        "missing_required_parameter custom_id 2");
  CHECK(first(good + batch_line("b", {{"prompt", "x"}}, "/v1/chat/completions")) ==
        "mismatched_url url 2");
  CHECK(first(R"({"custom_id":"a","body":{"prompt":"x"}})"
              "\n") == "missing_required_parameter url 1");
  CHECK(first(batch_line("a", {{"prompt", "x"}, {"model", "gpt"}})) ==
        "model_not_found body.model 1");
  CHECK(first(batch_line("a", {{"prompt", "x"}, {"stream", true}})) ==
        "stream_not_allowed body.stream 1");
  CHECK(first(batch_line("a", {{"prompt", "x"}, {"timeout", 30}})) ==
        "timeout_not_allowed body.timeout 1");
  for (const Json& none : {Json(), Json(0)}) {
    CHECK(c.look(batch_line("a", {{"prompt", "x"}, {"timeout", none}})).faults.empty());
  }
  CHECK(first("") == "empty_file input_file_id 0");
  CHECK(first("{\"a\":\n") == "invalid_json_line  1");
}

TEST_CASE("a file of too many lines says so first, whatever else is wrong") {
  Check c;
  std::string content;
  for (int i = 0; i < 150; ++i) content += "no JSON\n";
  const BatchCheck check = c.look(content, 149);
  CHECK(check.faults.size() == kBatchFaultsMax);
  CHECK(check.faults[0].code == "too_many_requests");
  CHECK(check.faults[1].line == 1);
  CHECK(check.summary.rows == 150);
}

TEST_CASE("a look at a long file stops when it is told to") {
  Check c;
  std::string content;
  for (int i = 0; i < 1000; ++i) content += batch_line(std::to_string(i), {{"prompt", "x"}});
  BatchInput input = c.open(content);
  int asked = 0;
  const auto check =
      check_batch(input, "/v1/completions", c.context, 5000, [&] { return ++asked == 2; });
  CHECK(check.status().code() == Code::kCancelled);
  CHECK(asked == 2);
}

}  // namespace
}  // namespace spillway::batch_check_test
