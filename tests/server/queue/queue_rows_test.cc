// [slow]: with a real server.
#include "server/queue/queue_rows.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "server/batches/batch_run.h"
#include "server/batches/file_rows.h"
#include "tests/server/api/api_support.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/queue_database.h"

namespace spillway::queue_rows_test {
namespace {

using test::QueueDatabase;

std::vector<std::string> lines(int64_t count, int64_t tokens = 4) {
  std::vector<std::string> all;
  for (int64_t i = 1; i <= count; ++i) {
    all.push_back(R"({"custom_id":"r)" + std::to_string(i) + R"(","body":{"prompt":"p)" +
                  std::to_string(i) + R"(","max_tokens":)" + std::to_string(tokens) + "}}");
  }
  return all;
}

std::string without_time(std::string line) {
  const size_t at = line.find("\"created\":");
  if (at != std::string::npos) line.erase(at, line.find(',', at) - at);
  return line;
}

// A worker of this process on a fake engine.
struct Work {
  explicit Work(QueueDatabase& given, FakeScheduler::Options engine_options = {})
      : queue(given), engine(engine_options) {
    options.url = queue.server.url();
    options.until_done = true;
    options.poll_seconds = 0.02;
    options.retry_seconds = 0.02;
    options.retry_seconds_max = 0.1;
    options.connection.query_seconds = 0.5;
    options.connection.connect_seconds = 0.5;
    job.scheduler = &engine;
    job.context = &context;
    job.sequences_max = 16;
    job.grace_seconds = 0;
    job.interrupted = [this] { return stopped.load(); };
    job.retry = {.seconds = 0.01, .seconds_max = 0.02, .faults_max = 2};
  }
  ~Work() {
    stopped = true;
    if (thread.joinable()) thread.join();
    engine.drain(0);
  }

  QueueRows& open(const QueueWorker& worker) {
    PgConnection own = queue.server.connect(options.connection);
    rows = std::make_unique<QueueRows>(std::move(own), worker, context, options);
    return *rows;
  }
  Status run(const QueueWorker& worker) {
    open(worker);
    const Status ran = run_rows(job, *rows).status();
    left = rows->close(engine.stats().healthy ? "" : "the engine died");
    return ran;
  }
  void start(const QueueWorker& worker) {
    thread = std::thread([this, worker] { status = run(worker); });
  }
  Status end() {
    thread.join();
    return status;
  }

  QueueDatabase& queue;
  Tokenizer tokenizer = byte_tokenizer();
  FakeScheduler engine;
  ApiContext context = fake_context(engine.shape(), &tokenizer);
  QueueRowsOptions options;
  BatchJob job;
  std::atomic<bool> stopped{false};
  std::unique_ptr<QueueRows> rows;
  bool left = false;
  Status status;
  std::thread thread;
};

FakeScheduler::Options slow() {
  FakeScheduler::Options options;
  options.round_seconds = 0.005;
  return options;
}

FakeScheduler::Options failing() {
  FakeScheduler::Options options;
  options.fail_after_tokens = 1;
  return options;
}

template <typename Condition>
void eventually(const Condition& condition) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(test::kPatience);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST_CASE("a worker answers a job as a batch over the same file would", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  std::vector<std::string> all = lines(40);
  all.insert(all.begin() + 7, {"no JSON", all[2], "", R"({"prompt":"x","max_tokens":-4})",
                               std::string(kBatchLineBytesMax + 1, 'x')});
  const SubmittedJob submitted = queue.submit(all);
  Work work(queue);
  QueueDatabase::ok(work.run(QueueDatabase::worker(1)));
  CHECK(work.left);
  CHECK(queue.status(submitted.id).state == "done");
  CHECK(queue.value(list_workers(queue.connection)).empty());

  BatchInput input = BatchInput::open(queue.folder / "input.jsonl").value();
  const InputSummary summary = summarize(input).value();
  Journal journal = Journal::create(queue.folder / "journal", {}).value();
  FileRows rows(input, nullptr, journal, work.context, {"run-1-0", 0});
  QueueDatabase::ok(run_rows(work.job, rows).status());
  std::vector<std::string> batch;
  REQUIRE(journal
              .for_each([&](int64_t, std::string_view line) {
                batch.push_back(without_time(std::string(line)));
                return Status();
              })
              .ok());
  std::vector<std::string> fetched;
  for (const std::string& line : queue.fetch(submitted.id)) fetched.push_back(without_time(line));
  CHECK(batch.size() == static_cast<size_t>(summary.rows));
  CHECK(fetched == batch);
  const JobStatus status = queue.status(submitted.id);
  CHECK(status.failed == journal.counts().failed);
  CHECK(status.prompt_tokens == journal.counts().prompt_tokens);
  CHECK(status.generated_tokens == journal.counts().generated_tokens);
}

TEST_CASE("while the database is away rows go on, and their results are written when it is back",
          "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(60));
  Work work(queue);
  const bool hangs = GENERATE(false, true);
  work.engine.hold();
  work.start(QueueDatabase::worker(1));
  REQUIRE(work.engine.wait_submitted(16));
  hangs ? queue.server.hang(true) : queue.server.crash();
  work.engine.release();
  REQUIRE(work.engine.wait_idle());
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // Some tries fail.
  hangs ? queue.server.hang(false) : queue.server.start();
  QueueDatabase::ok(work.end());
  queue.connection = queue.server.connect();
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.fetch(job.id).size() == 60);
}

TEST_CASE("an interrupted worker gives its rows back, and another ends the job", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(100, 30));
  {
    Work first(queue, slow());
    first.start(QueueDatabase::worker(1));
    eventually([&] { return queue.status(job.id).finished > 0; });
    first.stopped = true;
    CHECK(first.end().code() == Code::kCancelled);
    CHECK(first.left);
  }
  const JobStatus status = queue.status(job.id);
  CHECK(status.claimed == 0);
  CHECK(status.abandoned > 0);
  Work second(queue);
  QueueDatabase::ok(second.run(QueueDatabase::worker(2)));
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.fetch(job.id).size() == 100);
}

TEST_CASE("rows that the machine fails go to other workers, and are no results", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(3));
  Work broken(queue, failing());
  broken.options.machine_pause_seconds = 0;
  broken.options.until_done = false;
  broken.job.retry.faults_max = 1;
  broken.start(QueueDatabase::worker(1));
  eventually([&] {
    return queue.value(queue.connection.query("SELECT max(faults)::bigint FROM spillway.claims"))
               .integer(0, 0) > 0;
  });
  broken.stopped = true;
  (void)broken.end();
  CHECK(queue.status(job.id).finished == 0);
  CHECK_THAT(
      queue.value(queue.connection.query("SELECT max(cause) FROM spillway.claims")).text(0, 0),
      Catch::Contains("nvidia0"));
  queue.value(retry_job(queue.connection, job.id));
  Work works(queue);
  QueueDatabase::ok(works.run(QueueDatabase::worker(2)));
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.status(job.id).failed == 0);
}

TEST_CASE("rows of a worker whose engine died are as those that a machine failed", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(16));
  Work work(queue);
  work.options.machine_pause_seconds = 0;
  work.engine.hold();
  work.start(QueueDatabase::worker(1));
  REQUIRE(work.engine.wait_submitted(4));
  work.engine.set_healthy(false);
  work.engine.refuse_after(0, {Code::kDeviceLost, "the engine died"});
  work.engine.release();
  eventually([&] { return queue.value(list_workers(queue.connection)).empty(); });
  work.stopped = true;
  (void)work.end();
  const int64_t finished = queue.status(job.id).finished;
  CHECK(queue.status(job.id).abandoned + finished <= 16);
  const PgRows crashes = queue.value(queue.connection.query(
      "SELECT coalesce(max(crashes), 0)::bigint, count(worker) FROM spillway.claims"));
  CHECK(crashes.integer(0, 0) == 0);
  CHECK(crashes.integer(0, 1) == 0);
  Work other(queue);
  QueueDatabase::ok(other.run(QueueDatabase::worker(2)));
  CHECK(queue.status(job.id).state == "done");
}

TEST_CASE("a worker whose lease looks over goes on with what it has", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(60));
  Work work(queue);
  work.engine.hold();
  work.start(QueueDatabase::worker(1));
  REQUIRE(work.engine.wait_submitted(16));
  // A clock that steps, a machine that slept: it may not take its own rows from itself.
  for (int i = 0; i < 20; ++i) {
    queue.vanish(QueueDatabase::worker(1));
    if (i == 10) work.engine.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  QueueDatabase::ok(work.end());
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.fetch(job.id).size() == 60);
}

TEST_CASE("suspects run when nothing else does", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob suspects = queue.submit(lines(2));
  QueueWorker gone = QueueDatabase::worker(8);
  REQUIRE(queue.claim(gone));  // One of the two
  REQUIRE(queue.claim(gone));
  queue.sql("UPDATE spillway.claims SET crashes = 1");
  queue.vanish(gone);
  JobSpec urgent;
  urgent.priority = -1;
  const SubmittedJob job = queue.submit(lines(8), urgent);
  Work work(queue);
  work.engine.hold();
  work.start(QueueDatabase::worker(1));
  REQUIRE(work.engine.wait_submitted(8));
  // The first suspect is claimed, but waits for the eight; and the second for the first.
  eventually([&] {
    return queue
               .value(queue.connection.query("SELECT count(*) FROM spillway.claims c WHERE worker "
                                             "= 1 AND crashes = 2"))
               .integer(0, 0) == 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(work.engine.submitted() == 8);
  work.engine.release();
  QueueDatabase::ok(work.end());
  CHECK(queue.status(job.id).state == "done");
  CHECK(queue.status(suspects.id).state == "done");
  CHECK(queue.status(suspects.id).failed == 0);
}

TEST_CASE("rows of a job that was cancelled are dropped", "[slow]") {
  if (!test::has_postgres()) return;
  const test::Captured quiet;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(lines(200));
  Work work(queue);
  work.options.until_done = false;
  work.engine.hold();
  QueueWorker worker = QueueDatabase::worker(1);
  worker.lease_seconds = 0.4;  // It looks four times as often.
  work.start(worker);
  REQUIRE(work.engine.wait_submitted(8));
  queue.ok(cancel_job(queue.connection, job.id));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const SubmittedJob next = queue.submit(lines(5));
  work.engine.release();
  eventually([&] { return queue.status(next.id).state == "done"; });
  CHECK(queue.status(job.id).finished == 0);
  CHECK(work.engine.submitted() < 30);
  work.stopped = true;
  (void)work.end();
}

}  // namespace
}  // namespace spillway::queue_rows_test
