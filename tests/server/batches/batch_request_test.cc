// The body of POST /v1/batches: what is read, and the error of each wrong field.
#include "server/batches/batch_request.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace spillway::batch_request_test {
namespace {

using Json = nlohmann::json;

constexpr int64_t kNow = 1'700'000'000;

Json least() {
  return {
      {"input_file_id", "file-1"}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
}

BatchRecord read(const Json& change) {
  Json body = least();
  body.update(change);
  auto result = read_batch_request(body.dump(), kNow);
  REQUIRE(std::holds_alternative<BatchRecord>(result));
  return std::get<BatchRecord>(result);
}

std::string param_of(const Json& change) {
  Json body = least();
  body.update(change);
  auto result = read_batch_request(body.dump(), kNow);
  if (std::holds_alternative<BatchRecord>(result)) return "none";
  const ApiError& error = std::get<ApiError>(result);
  CHECK(error.status == 400);
  return error.param;
}

TEST_CASE("a batch is what its body says") {
  const BatchRecord record =
      read({{"metadata", {{"k", "v"}}},
            {"output_expires_after", {{"anchor", "created_at"}, {"seconds", 3600}}},
            {"endpoint", "/v1/chat/completions"}});
  CHECK(record.input_file == "file-1");
  CHECK(record.endpoint == "/v1/chat/completions");
  CHECK(record.window == "24h");
  CHECK(record.state == BatchState::kValidating);
  CHECK(record.entered[0] == kNow);
  CHECK(record.expires_at == kNow + 24 * 3600);
  CHECK(record.metadata == std::vector<std::pair<std::string, std::string>>{{"k", "v"}});
  CHECK(record.output_seconds == 3600);
  CHECK(record.id.empty());
}

TEST_CASE("windows are minutes, hours, days, or none") {
  CHECK(read({{"completion_window", "90m"}}).expires_at == kNow + 90 * 60);
  CHECK(read({{"completion_window", "7d"}}).expires_at == kNow + 7 * 24 * 3600);
  CHECK(read({{"completion_window", "none"}}).expires_at == 0);
}

TEST_CASE("the error names the wrong field") {
  for (const char* name : {"input_file_id", "endpoint", "completion_window"}) {
    CHECK(param_of({{name, nullptr}}) == name);
    CHECK(param_of({{name, 1}}) == name);
  }
  CHECK(param_of({{"endpoint", "/v1/embeddings"}}) == "endpoint");
  for (const char* window : {"", "24", "h", "0h", "-1h", "24x", "24h ", "10001h", "1.5h"}) {
    CHECK(param_of({{"completion_window", window}}) == "completion_window");
  }
  Json many;
  for (int i = 0; i < 17; ++i) many[std::to_string(i)] = "";
  for (const Json& wrong : {Json(1), Json{{"a", 1}}, Json{{std::string(65, 'k'), "v"}},
                            Json{{"k", std::string(513, 'v')}}, many}) {
    CHECK(param_of({{"metadata", wrong}}) == "metadata");
  }
  // Characters count, as at OpenAI, not their bytes.
  const auto repeated = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "\xe6\x97\xa5";
    return text;
  };
  const Json most = {{repeated(64), repeated(512)}};
  CHECK(read({{"metadata", most}}).metadata.front().first == repeated(64));
  CHECK(param_of({{"metadata", {{repeated(65), ""}}}}) == "metadata");
  CHECK(param_of({{"metadata", {{"k", repeated(513)}}}}) == "metadata");
  for (const Json& wrong :
       {Json(1), Json{{"anchor", "created_at"}}, Json{{"anchor", "x"}, {"seconds", 3600}},
        Json{{"anchor", "created_at"}, {"seconds", 3599}},
        Json{{"anchor", "created_at"}, {"seconds", 2592001}}}) {
    CHECK(param_of({{"output_expires_after", wrong}}) == "output_expires_after");
  }
  CHECK(param_of(least()) == "none");
}

}  // namespace
}  // namespace spillway::batch_request_test
