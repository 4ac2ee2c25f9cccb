// [slow]: with a real server.
#include "server/queue/queue_claims.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/queue_database.h"

namespace spillway::queue_claims_test {
namespace {

using test::QueueDatabase;

TEST_CASE("workers that claim at once share the rows, each to one of them", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  constexpr int64_t kRows = 3000;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(kRows));
  std::mutex mutex;
  std::multiset<int64_t> all;
  std::vector<std::thread> threads;
  for (int64_t id = 1; id <= 6; ++id) {
    threads.emplace_back([&, id] {
      PgConnection own = queue.server.connect();
      const QueueWorker worker = QueueDatabase::worker(id);
      if (!renew_lease(own, worker, {}, {}).ok()) return;
      for (;;) {
        const Result<std::optional<Claim>> claim =
            claim_rows(own, worker, ClaimRoom{.rows = 16}, true);
        if (!claim.ok() || !claim.value()) return;
        std::vector<RowResult> results;
        for (const ClaimedRow& row : claim.value()->rows) {
          results.push_back(QueueDatabase::result(*claim.value(), row));
        }
        if (!write_results(own, worker, results, {{claim.value()->id, claim.value()->generation}})
                 .ok()) {
          return;
        }
        const std::lock_guard lock(mutex);
        for (const ClaimedRow& row : claim.value()->rows) all.insert(row.number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(all.size() == kRows);
  CHECK(std::set<int64_t>(all.begin(), all.end()).size() == kRows);
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.fetch(job.id).size() == kRows);
}

TEST_CASE("the last rows are shared out", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(100));
  const QueueWorker one = QueueDatabase::worker(1), two = QueueDatabase::worker(2);
  queue.renew(two);
  std::vector<size_t> sizes;
  while (const std::optional<Claim> claim = queue.claim(one, 40))
    sizes.push_back(claim->rows.size());
  CHECK(sizes.front() == 25);  // A fourth of what is left: for two workers, twice each
  CHECK(std::is_sorted(sizes.rbegin(), sizes.rend()));
  CHECK(sizes.back() == 1);
}

TEST_CASE("a worker takes what it can answer as the first one did, the most urgent first",
          "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const auto submit = [&](const JobSpec& given) {
    JobSpec spec = given;
    spec.nonce = std::to_string(spec.priority) + spec.format + spec.kv_format + spec.kv_rule +
                 spec.model + std::to_string(spec.deadline_seconds.value_or(0));
    return queue.submit(QueueDatabase::lines(1), spec).id;
  };
  JobSpec spec;
  spec.model = "other";
  submit(spec);
  spec.model = "m";
  spec.format = "q8";
  submit(spec);
  spec.format = "";
  spec.kv_format = "q4";
  submit(spec);
  spec.kv_format = "";
  spec.kv_rule = "h2o";
  submit(spec);
  spec.kv_rule = "";
  const int64_t last = submit(spec);
  spec.deadline_seconds = 7200;
  const int64_t third = submit(spec);
  spec.deadline_seconds = 3600;
  const int64_t second = submit(spec);
  spec.priority = -1;
  spec.model = "alias";
  spec.format = "bf16";
  spec.kv_format = "f16";
  spec.kv_rule = "full";
  const int64_t first = submit(spec);
  const QueueWorker worker = QueueDatabase::worker(1);
  std::vector<int64_t> jobs;
  while (const std::optional<Claim> claim = queue.claim(worker)) jobs.push_back(claim->job);
  CHECK(jobs == std::vector<int64_t>{first, second, third, last});
}

TEST_CASE("only workers that answer alike go on with a job", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  JobSpec spec;
  spec.seed = UINT64_MAX;
  queue.submit(QueueDatabase::lines(10), spec);
  const QueueWorker one = QueueDatabase::worker(1), alike = QueueDatabase::worker(2),
                    unlike = QueueDatabase::worker(3, "m 2 bf16");
  const std::optional<Claim> first = queue.claim(one, 2);
  REQUIRE(first);
  CHECK(first->seed == UINT64_MAX);
  CHECK(first->run_id == "run-1-18446744073709551615");
  CHECK_FALSE(queue.claim(unlike, 2));
  CHECK_FALSE(queue.value(has_work(queue.connection, unlike)));
  CHECK(queue.value(has_work(queue.connection, alike)));
  const std::optional<Claim> second = queue.claim(alike, 2);
  REQUIRE(second);
  CHECK(second->run_id == first->run_id);  // The run has one name.
  queue.vanish(one);
  CHECK_FALSE(queue.claim(unlike));
}

TEST_CASE("a worker that comes back late finds its rows with another", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(1));
  const QueueWorker late = QueueDatabase::worker(1), other = QueueDatabase::worker(2);
  const std::optional<Claim> first = queue.claim(late);
  REQUIRE(first);
  CHECK_FALSE(queue.claim(other));  // Its lease holds.
  queue.vanish(late);
  CHECK_FALSE(queue.claim(other, 1, /*take_over=*/false));
  const std::optional<Claim> second = queue.claim(other);
  REQUIRE(second);
  CHECK(second->id == first->id);
  CHECK(second->generation == first->generation + 1);
  CHECK(queue.write(late, *first, 0, 1, "late").late == 1);
  CHECK(queue.status(job.id).finished == 0);
  CHECK(queue.write(other, *second).written == 1);
  // An answer that was lost is asked for again: nothing changes.
  CHECK(queue.write(other, *second).written == 0);
  CHECK(queue.fetch(job.id) == std::vector<std::string>{"answer 1"});
  CHECK(queue.status(job.id).finished == 1);
}

TEST_CASE("a lease that is over holds as long as nobody else came", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(4));
  const QueueWorker worker = QueueDatabase::worker(1);
  const std::optional<Claim> claim = queue.claim(worker, 2);
  REQUIRE(claim);
  queue.vanish(worker);
  CHECK(queue.write(worker, *claim).written == 2);
  CHECK(queue.status(job.id).finished == 2);
}

TEST_CASE("rows that a worker gives back are another's at once", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(20));
  const QueueWorker one = QueueDatabase::worker(1), two = QueueDatabase::worker(2);
  const std::optional<Claim> claim = queue.claim(one, 8);
  REQUIRE(claim);
  REQUIRE(claim->rows.size() == 8);
  queue.write(one, *claim, 0, 3);
  queue.ok(leave_queue(queue.connection, one));
  CHECK(queue.status(job.id).abandoned == 5);
  // Before rows that nobody had yet, and in parts where there is less room.
  const std::optional<Claim> first = queue.claim(two, 2), second = queue.claim(two, 2);
  CHECK(QueueDatabase::numbers(first) == std::vector<int64_t>{4, 5});
  CHECK(QueueDatabase::numbers(second) == std::vector<int64_t>{6, 7});
  CHECK_FALSE(first->apart);
  CHECK(QueueDatabase::numbers(queue.claim(two, 2)) == std::vector<int64_t>{8});
}

TEST_CASE("a claim that its worker does not know of is given back when that renews its lease",
          "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(40));
  const QueueWorker worker = QueueDatabase::worker(1);
  const std::optional<Claim> known = queue.claim(worker, 2), lost = queue.claim(worker, 2);
  REQUIRE(lost);
  queue.claims = {known->id};
  queue.renew(worker);
  const std::optional<Claim> again = queue.claim(worker, 2);
  CHECK(QueueDatabase::numbers(again) == QueueDatabase::numbers(lost));
  CHECK(queue.write(worker, *lost).late == 2);
  CHECK(queue.write(worker, *again).written == 2);
  CHECK(queue.write(worker, *known).written == 2);
}

TEST_CASE("a worker whose lease looks over does not take its own rows from itself", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(2));
  const QueueWorker worker = QueueDatabase::worker(1);
  REQUIRE(queue.claim(worker));
  REQUIRE(queue.claim(worker));
  queue.vanish(worker);
  CHECK_FALSE(queue.value(claim_rows(queue.connection, worker, ClaimRoom(), true)));
}

TEST_CASE("a claim is not ended while one of its rows has no result", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(4));
  const QueueWorker worker = QueueDatabase::worker(1), other = QueueDatabase::worker(2);
  const std::optional<Claim> claim = queue.claim(worker, 2);
  REQUIRE(claim->rows.size() == 2);
  const std::vector<RowResult> one = {QueueDatabase::result(*claim, claim->rows[0])};
  queue.value(write_results(queue.connection, worker, one, {{claim->id, claim->generation}}));
  queue.vanish(worker);
  CHECK(QueueDatabase::numbers(queue.claim(other, 9)) == std::vector<int64_t>{3});
  CHECK(QueueDatabase::numbers(queue.claim(other, 9)) == std::vector<int64_t>{4});
  CHECK(QueueDatabase::numbers(queue.claim(other, 9)) == std::vector<int64_t>{2});
}

TEST_CASE("rows of a worker that vanished do not wait for jobs that came later", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob first = queue.submit(QueueDatabase::lines(2));
  const QueueWorker gone = QueueDatabase::worker(1), worker = QueueDatabase::worker(2);
  REQUIRE(queue.claim(gone));
  queue.vanish(gone);
  const SubmittedJob second = queue.submit(QueueDatabase::lines(5));
  std::vector<int64_t> jobs;
  while (const std::optional<Claim> claim = queue.claim(worker, 1)) jobs.push_back(claim->job);
  CHECK(jobs.size() == 7);
  CHECK(jobs[0] == first.id);  // Its new row
  CHECK(jobs[1] == first.id);  // And then the one that may be why a worker vanished
  CHECK(std::count(jobs.begin() + 2, jobs.end(), second.id) == 5);
}

TEST_CASE("lines that are longer than there is room for are shared with others", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const std::string large = R"({"prompt":")" + std::string(1000, 'x') + "\"}";
  queue.submit(std::vector<std::string>(20, large));
  const QueueWorker worker = QueueDatabase::worker(1);
  std::vector<int64_t> all;
  for (;;) {
    queue.renew(worker);
    const std::optional<Claim> claim = queue.value(
        claim_rows(queue.connection, worker, ClaimRoom{.rows = 9, .bytes = 3000}, true));
    if (!claim) break;
    queue.claims.push_back(claim->id);
    CHECK(claim->rows.size() <= 2);
    for (const int64_t number : QueueDatabase::numbers(claim)) all.push_back(number);
  }
  std::sort(all.begin(), all.end());
  CHECK(all.size() == 20);
  CHECK(std::unique(all.begin(), all.end()) == all.end());
}

TEST_CASE("a row that ends the program again and again is found, alone, and set down as that",
          "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  constexpr int64_t kPoison = 37;
  JobSpec spec;
  spec.attempts_max = GENERATE(3, 5);
  const SubmittedJob job = queue.submit(QueueDatabase::lines(64), spec);
  int64_t crashes = 0, alone = 0;
  for (int64_t id = 1; queue.status(job.id).state != "done"; ++id) {
    REQUIRE(id < 200);
    const QueueWorker worker = QueueDatabase::worker(id);
    const std::optional<Claim> claim = queue.claim(worker);
    REQUIRE(claim);
    const std::vector<int64_t> numbers = QueueDatabase::numbers(claim);
    const bool poison = std::count(numbers.begin(), numbers.end(), kPoison) > 0;
    if (claim->apart) {
      queue.ok(begin_alone(queue.connection, worker, {claim->id, claim->generation}));
    }
    if (claim->convicted) {
      CHECK(numbers == std::vector<int64_t>{kPoison});
      queue.write(worker, *claim, 0, 1, "crashed");
    } else if (poison) {
      // The worker dies with it.
      ++crashes;
      if (claim->apart && numbers.size() == 1) ++alone;
      queue.vanish(worker);
    } else {
      queue.write(worker, *claim);
    }
  }
  CHECK(crashes >= spec.attempts_max);
  CHECK(crashes <= 6);
  CHECK(alone >= 2);
  const std::vector<std::string> lines = queue.fetch(job.id);
  REQUIRE(lines.size() == 64);
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool poison = i + 1 == kPoison;
    CHECK(lines[i] == (poison ? "crashed " : "answer ") + std::to_string(i + 1));
  }
}

TEST_CASE("a row is blamed for no worker that vanished before it began, or beside others",
          "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  JobSpec spec;
  spec.attempts_max = 3;
  queue.submit(QueueDatabase::lines(1), spec);
  queue.renew(QueueDatabase::worker(100));
  REQUIRE(queue.claim(QueueDatabase::worker(100)));
  queue.sql("UPDATE spillway.claims SET crashes = 7");  // In company
  for (int64_t id = 101; id < 110; ++id) {
    queue.vanish(QueueDatabase::worker(id - 1));
    const std::optional<Claim> claim = queue.claim(QueueDatabase::worker(id));
    REQUIRE(claim);
    CHECK(claim->apart);
    CHECK_FALSE(claim->convicted);  // It waits for what else runs there, which ends the worker.
  }
}

TEST_CASE("rows that machines fail are tried on others, then set aside until asked for", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  JobSpec spec;
  spec.attempts_max = 3;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(1), spec);
  for (int64_t id = 1; id <= 3; ++id) {
    const QueueWorker worker = QueueDatabase::worker(id);
    const std::optional<Claim> claim = queue.claim(worker);
    REQUIRE(claim);
    CHECK_FALSE(claim->convicted);
    const std::vector<ClaimId> all = {{claim->id, claim->generation}};
    queue.ok(give_back(queue.connection, worker, all, id == 1 ? 0.3 : 0, "disk on fire"));
    if (id == 1) {
      CHECK_FALSE(queue.claim(worker));  // Not at once
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    queue.ok(give_back(queue.connection, worker, all, 0, "counted once"));
  }
  JobStatus status = queue.status(job.id);
  CHECK(status.set_aside == 1);
  CHECK(status.cause == "disk on fire");
  const QueueWorker worker = QueueDatabase::worker(9);
  CHECK_FALSE(queue.claim(worker));
  CHECK_FALSE(queue.value(has_work(queue.connection, worker)));
  CHECK(queue.value(retry_job(queue.connection, job.id)) == 1);
  CHECK(queue.value(has_work(queue.connection, worker)));
  const std::optional<Claim> claim = queue.claim(worker);
  REQUIRE(claim);
  queue.write(worker, *claim);
  CHECK(queue.status(job.id).state == "done");
}

TEST_CASE("a crash of the database loses no result that it has taken", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(30));
  const QueueWorker worker = QueueDatabase::worker(1);
  std::vector<Claim> claims;
  for (int i = 0; i < 3; ++i) claims.push_back(*queue.claim(worker, 5));
  queue.write(worker, claims[0]);
  queue.write(worker, claims[1], 0, 2);
  queue.server.crash();
  queue.server.start();
  queue.connection = queue.server.connect();
  CHECK(queue.status(job.id).finished == 7);
  // Claims may be lost; who held them is told, and their rows are claimed again.
  const WrittenResults rest = queue.write(worker, claims[2]);
  CHECK(rest.written + rest.late == 5);
  while (const std::optional<Claim> claim = queue.claim(worker)) queue.write(worker, *claim);
  queue.vanish(worker);
  const QueueWorker other = QueueDatabase::worker(2);
  while (const std::optional<Claim> claim = queue.claim(other)) queue.write(other, *claim);
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.fetch(job.id).size() == 30);
}

}  // namespace
}  // namespace spillway::queue_claims_test
