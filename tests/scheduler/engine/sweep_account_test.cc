#include "scheduler/engine/sweep_account.h"

#include <catch2/catch.hpp>
#include <memory>

namespace spillway::sweep_account_test {
namespace {

TEST_CASE("a sweep's work is that of its items, prompts and steps apart") {
  const auto log = std::make_shared<SweepLog>();
  SweepAccount account(log, nullptr);
  KvSequence kept;  // Keeps 4 heavy hitters and 8 recent rows
  kept.kinds[0].budget = {4, 8, true};
  kept.kinds[0].layers = 1;
  const std::vector<int32_t> prompt = {5, 6, 7}, token = {9};
  const std::vector<SweepItem> items = {{.tokens = prompt, .kv = &kept, .all_logits = true},
                                        {.tokens = prompt, .kv = &kept, .no_logits = true},
                                        {.tokens = token, .position = 50, .kv = &kept},
                                        {.tokens = token, .position = 2, .kv = &kept}};
  CHECK(account.begin(items) == 8);
  account.finish(2.5, {}, 0, 0);
  const std::vector<LoggedSweep> sweeps = log->take();
  REQUIRE(sweeps.size() == 1);
  CHECK(sweeps[0].tokens() == 8);
  CHECK(sweeps[0].prompt_tokens == 6);
  CHECK(sweeps[0].prompt_rows == 6);
  CHECK(sweeps[0].decoding == 2);
  CHECK(sweeps[0].logit_rows == 3 + 0 + 1 + 1);
  CHECK(sweeps[0].prompts == 2);
  CHECK(sweeps[0].prompt_pairs == 2 * 6);
  CHECK(sweeps[0].cached_rows == 13 + 3);
  CHECK(sweeps[0].seconds == 2.5);
}

TEST_CASE("a step with a draft has a row for each token, and reads the cache once") {
  SweepAccount account(nullptr, nullptr);
  KvSequence kept;
  kept.kinds[0].layers = 1;
  const std::vector<int32_t> tokens = {9, 8, 7, 6};
  const std::vector<SampleRule> rules(4);
  const std::vector<SweepItem> items = {
      {.tokens = tokens, .position = 50, .kv = &kept, .samples = rules}};
  CHECK(account.begin(items) == 4);
  CHECK(account.sweep().decoding == 4);
  CHECK(account.sweep().drafted == 3);
  CHECK(account.sweep().logit_rows == 4);
  CHECK(account.sweep().cached_rows == 54);
  CHECK(account.sweep().prompts == 0);
}

TEST_CASE("rows of layers with a window count as the mean over the layers") {
  const auto log = std::make_shared<SweepLog>();
  SweepAccount account(log, nullptr);
  KvSequence kv;
  kv.chunked_prompt = 30;
  kv.kinds[0].layers = 3;
  kv.kinds[1].layers = 1;
  kv.kinds[1].window = 8;
  kv.kinds[1].budget.recent = 7;
  const std::vector<int32_t> prompt(12, 5), token = {9};
  const std::vector<SweepItem> items[] = {
      {{.tokens = prompt, .kv = &kv}},
      {{.tokens = prompt, .position = 4, .prompt = 30, .kv = &kv}},
      {{.tokens = token, .position = 50, .kv = &kv}}};
  for (const auto& sweep : items) {
    account.begin(sweep);
    account.finish(1, {}, 0, 0);
  }
  const std::vector<LoggedSweep> sweeps = log->take();
  REQUIRE(sweeps.size() == 3);
  CHECK(sweeps[0].prompt_rows == (3 * 12 + 7) / 4.0);
  CHECK(sweeps[0].prompt_pairs == (3 * 78 + 36 + 4 * 8) / 4.0);
  CHECK(sweeps[1].prompt_rows == 12);
  CHECK(sweeps[1].prompt_pairs == (3 * (48 + 78) + 5 + 6 + 7 + 9 * 8) / 4.0);
  CHECK(sweeps[1].cached_rows == 4);
  CHECK(sweeps[2].cached_rows == (3 * 51 + 8) / 4.0);
}

TEST_CASE("a sweep moved what the totals grew by since the last one ended") {
  const auto log = std::make_shared<SweepLog>();
  SweepAccount account(log, nullptr);
  // Loading the weights belongs to no sweep.
  account.start_from({.disk_read = 100, .to_device = 1000});
  account.begin({});
  account.finish(1, {.disk_read = 107, .disk_written = 5, .to_device = 1020, .to_host = 3}, 50, 0);
  account.begin({});
  account.finish(1,
                 {.disk_read = 108,
                  .disk_written = 5,
                  .to_device = 1020,
                  .to_host = 10,
                  .attended_by_host = 64},
                 50, 0);
  const std::vector<LoggedSweep> sweeps = log->take();
  REQUIRE(sweeps.size() == 2);
  CHECK(sweeps[0].disk_read_bytes == 57);
  CHECK(sweeps[0].disk_write_bytes == 5);
  CHECK(sweeps[0].to_device_bytes == 20);
  CHECK(sweeps[0].to_host_bytes == 3);
  CHECK(sweeps[1].disk_read_bytes == 51);
  CHECK(sweeps[1].disk_write_bytes == 0);
  CHECK(sweeps[1].to_device_bytes == 0);
  CHECK(sweeps[1].to_host_bytes == 7);
  CHECK(sweeps[1].host_attended_bytes == 64);
  CHECK(log->take().empty());
}

TEST_CASE("waiting for a free staging buffer is told from waiting for data") {
  const auto log = std::make_shared<SweepLog>();
  SweepAccount account(log, nullptr);
  account.begin({});
  CHECK(account.wait("x", &LoggedSweep::weights_wait_seconds, [] { return 7; }) == 7);
  account.finish(9, {.kv_room_seconds = 0.25, .activations_room_seconds = 0.5}, 0, 2);
  const LoggedSweep work = log->take().at(0);
  CHECK(work.staging_wait_seconds == 0.75);
  CHECK(work.kv_wait_seconds == 1.75);
  CHECK(work.activations_wait_seconds == -0.5);  // Nothing else was waited for.
  CHECK(work.weights_wait_seconds >= 0);
  CHECK(work.weights_wait_seconds < 1);
}

}  // namespace
}  // namespace spillway::sweep_account_test
