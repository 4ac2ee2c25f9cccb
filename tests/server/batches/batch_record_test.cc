// Batches: their states, their object in the API, and what the table keeps of them.
#include "server/batches/batch_record.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace spillway::batch_record_test {
namespace {

constexpr BatchState kAll[] = {BatchState::kValidating, BatchState::kInProgress,
                               BatchState::kFinalizing, BatchState::kCompleted,
                               BatchState::kFailed,     BatchState::kExpired,
                               BatchState::kCancelling, BatchState::kCancelled};

TEST_CASE("nothing follows a final state, and every state can be reached") {
  for (const BatchState from : kAll) {
    bool any = false;
    for (const BatchState to : kAll) any |= may_follow(from, to);
    CHECK(any != is_final(from));
    bool reached = from == BatchState::kValidating;
    for (const BatchState before : kAll) reached |= may_follow(before, from);
    CHECK(reached);
    CHECK_FALSE(may_follow(from, from));
  }
}

BatchRecord sample() {
  BatchRecord record;
  record.id = "batch_1";
  record.owner = "me";
  record.endpoint = "/v1/completions";
  record.input_file = "file-1";
  record.window = "24h";
  record.metadata = {{"a", "\"ä\""}, {"b", "2"}};
  record.output_seconds = 3600;
  record.entered[0] = 1000;
  record.expires_at = 87400;
  record.total = 5;
  return record;
}

TEST_CASE("no state is entered before the one that it follows, whatever the clock does") {
  BatchRecord record;
  record.entered[0] = 1000;  // validating
  record.enter(BatchState::kInProgress, 1010);
  record.enter(BatchState::kFinalizing, 7);
  record.enter(BatchState::kCompleted, 9);
  const nlohmann::ordered_json json = batch_object(record);
  CHECK(json["created_at"] == 1000);
  CHECK(json["in_progress_at"] == 1010);
  CHECK(json["finalizing_at"] == 1010);
  CHECK(json["completed_at"] == 1010);
}

TEST_CASE("the object has OpenAI's fields, null until they are known") {
  BatchRecord record = sample();
  nlohmann::ordered_json object = batch_object(record);
  CHECK(object["status"] == "validating");
  CHECK(object["created_at"] == 1000);
  for (const char* name :
       {"in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
        "cancelling_at", "cancelled_at", "errors", "output_file_id", "error_file_id"}) {
    CHECK(object.at(name).is_null());
  }
  CHECK(object["metadata"]["a"] == "\"ä\"");
  CHECK(object["expires_at"] == 87400);
  record.enter(BatchState::kInProgress, 1001);
  record.enter(BatchState::kFinalizing, 1002);
  record.enter(BatchState::kCompleted, 1003);
  record.output_file = "file-2";
  record.completed = 4;
  record.failed = 1;
  record.prompt_tokens = 30;
  record.cached_tokens = 16;
  record.generated_tokens = 12;
  object = batch_object(record);
  CHECK(object["status"] == "completed");
  CHECK(object["in_progress_at"] == 1001);
  CHECK(object["completed_at"] == 1003);
  CHECK(object["output_file_id"] == "file-2");
  CHECK(object["request_counts"]["completed"] == 4);
  CHECK(object["usage"]["total_tokens"] == 42);
  CHECK(object["usage"]["input_tokens_details"]["cached_tokens"] == 16);
  record = sample();
  record.faults.push_back({"invalid_json_line", "no JSON", "", 7});
  record.enter(BatchState::kFailed, 1001);
  object = batch_object(record);
  CHECK(object["errors"]["data"][0]["line"] == 7);
  CHECK(object["errors"]["data"][0]["param"].is_null());
}

TEST_CASE("a record is read back as it was written") {
  BatchRecord record = sample();
  record.faults.push_back({"invalid_json_line", "no JSON", "body", 7});
  record.faults.push_back({"empty_file", "nothing", "", 0});
  record.detail = "the disk is full";
  record.model = "demo";
  record.models = {"demo", "alias"};
  record.identity = "demo f16/f16";
  record.output_file = "file-2";
  record.error_file = "file-3";
  record.completed = 3;
  record.failed = 2;
  record.prompt_tokens = 5;
  record.cached_tokens = 4;
  record.generated_tokens = 6;
  record.enter(BatchState::kCancelling, 2000);
  const auto read = read_batch_record(batch_record_text(record));
  REQUIRE(read.ok());
  CHECK(batch_record_text(read.value()) == batch_record_text(record));
  CHECK(read->state == BatchState::kCancelling);
  CHECK(read->faults.size() == 2);
  CHECK(read->output_seconds == 3600);
  CHECK(read->models == record.models);
  CHECK(read->identity == record.identity);
  for (const char* text : {"", "{}", "{\"version\":2}", "[]", "{\"version\":1,\"id\":5}"}) {
    CHECK_FALSE(read_batch_record(text).ok());
  }
}

}  // namespace
}  // namespace spillway::batch_record_test
