// The table of batches: added, changed, listed, and there again after a new start.
#include "server/batches/batch_table.h"

#include <catch2/catch.hpp>

#include "tests/support/temp_directory.h"

namespace spillway::batch_table_test {
namespace {

BatchRecord batch(const std::string& id, const std::string& owner = "me") {
  BatchRecord record;
  record.id = id;
  record.owner = owner;
  record.endpoint = "/v1/completions";
  record.input_file = "file-1";
  record.window = "24h";
  record.entered[0] = 1000;
  return record;
}

TEST_CASE("batches stay over a new start, each its owner's") {
  TempDirectory folder;
  auto table = BatchTable::open(folder.path()).value();
  CHECK(BatchTable::open(folder.path()).status().code() == Code::kCapacity);
  REQUIRE(table->add(batch("batch_1")).ok());
  CHECK_FALSE(table->add(batch("batch_1")).ok());
  REQUIRE(table
              ->update("batch_1",
                       [](BatchRecord& record) {
                         record.enter(BatchState::kInProgress, 1001);
                         return Status();
                       })
              .ok());
  table.reset();
  table = BatchTable::open(folder.path()).value();
  CHECK(table->find("me", "batch_1")->state == BatchState::kInProgress);
  CHECK(table->find("you", "batch_1").status().code() == Code::kNotFound);
  CHECK(table->get("batch_1")->owner == "me");
  CHECK(table->get("batch_2").status().code() == Code::kNotFound);
  CHECK(table->counts()[1] == 1);
}

TEST_CASE("counts of batches and of lines in progress follow every change, and a new start") {
  TempDirectory folder;
  auto table = BatchTable::open(folder.path()).value();
  const auto check = [&](int64_t validating, int64_t in_progress, int64_t completed, int64_t rows) {
    CHECK(table->counts()[static_cast<size_t>(BatchState::kValidating)] == validating);
    CHECK(table->counts()[static_cast<size_t>(BatchState::kInProgress)] == in_progress);
    CHECK(table->counts()[static_cast<size_t>(BatchState::kCompleted)] == completed);
    CHECK(table->rows_in_progress() == rows);
  };
  const auto enter = [&](const char* id, BatchState state, int64_t total) {
    return table
        ->update(id,
                 [&](BatchRecord& record) {
                   record.total = total;
                   record.enter(state, 1001);
                   return Status();
                 })
        .ok();
  };
  for (const char* id : {"batch_1", "batch_2"}) REQUIRE(table->add(batch(id)).ok());
  check(2, 0, 0, 0);
  CHECK_FALSE(table->add(batch("batch_1")).ok());
  check(2, 0, 0, 0);
  REQUIRE(enter("batch_1", BatchState::kInProgress, 100));
  REQUIRE(enter("batch_2", BatchState::kInProgress, 20));
  check(0, 2, 0, 120);
  CHECK_FALSE(table
                  ->update("batch_1",
                           [](BatchRecord& record) {
                             record.total = 7;
                             return Status(Code::kCancelled, "no");
                           })
                  .ok());
  check(0, 2, 0, 120);
  REQUIRE(enter("batch_1", BatchState::kFinalizing, 100));
  REQUIRE(enter("batch_1", BatchState::kCompleted, 100));
  check(0, 1, 1, 20);
  table.reset();
  table = BatchTable::open(folder.path()).value();
  check(0, 1, 1, 20);
}

TEST_CASE("a change that is refused changes nothing") {
  TempDirectory folder;
  const auto table = BatchTable::open(folder.path()).value();
  REQUIRE(table->add(batch("batch_1")).ok());
  const auto refused = table->update("batch_1", [](BatchRecord& record) {
    record.total = 9;
    return invalid_argument("no");
  });
  CHECK(refused.status().code() == Code::kInvalidArgument);
  CHECK(table->find("me", "batch_1")->total == 0);
  CHECK(table->update("batch_2", [](BatchRecord&) { return Status(); }).status().code() ==
        Code::kNotFound);
}

TEST_CASE("lists go from the newest on, in pages") {
  TempDirectory folder;
  auto table = BatchTable::open(folder.path()).value();
  for (int i = 0; i < 5; ++i) REQUIRE(table->add(batch("batch_" + std::to_string(i))).ok());
  REQUIRE(table->add(batch("batch_x", "you")).ok());
  const auto ids = [](const BatchTable::Listing& listing) {
    std::string all;
    for (const BatchRecord& record : listing.batches) all += record.id.back();
    return all + (listing.more ? "+" : "");
  };
  CHECK(ids(table->list("me", "", 2).value()) == "43+");
  CHECK(ids(table->list("me", "batch_3", 2).value()) == "21+");
  CHECK(ids(table->list("me", "batch_1", 2).value()) == "0");
  CHECK(table->list("me", "batch_x", 2).status().code() == Code::kNotFound);
  REQUIRE(table
              ->update("batch_2",
                       [](BatchRecord& record) {
                         record.enter(BatchState::kFailed, 1001);
                         return Status();
                       })
              .ok());
  std::string left;
  const auto visit = [&](const BatchRecord& record) {
    left += record.id.back();
    return record.id != "batch_4";
  };
  table->for_each_unfinished(visit);
  CHECK(left == "0134");
  table.reset();
  table = BatchTable::open(folder.path()).value();
  left.clear();
  table->for_each_unfinished(visit);
  CHECK(left == "0134");
}

}  // namespace
}  // namespace spillway::batch_table_test
