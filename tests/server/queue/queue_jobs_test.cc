// [slow]: with a real server.
#include "server/queue/queue_jobs.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/queue_database.h"

namespace spillway::queue_jobs_test {
namespace {

using test::QueueDatabase;

TEST_CASE("the same file with the same settings is one job", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob first = queue.submit(QueueDatabase::lines(3));
  CHECK(first.rows == 3);
  CHECK_FALSE(first.existed);
  const SubmittedJob again = queue.submit(QueueDatabase::lines(3));
  CHECK(again.id == first.id);
  CHECK(again.existed);
  JobSpec other;
  SECTION("another seed") {
    other.seed = 1;
  }
  SECTION("another model") {
    other.model = "n";
  }
  SECTION("another format") {
    other.format = "q8";
  }
  SECTION("another cache") {
    other.kv_format = "q4";
  }
  SECTION("another rule") {
    other.kv_rule = "h2o";
  }
  SECTION("a job of its own") {
    other.nonce = "5";
  }
  const SubmittedJob second = queue.submit(QueueDatabase::lines(3), other);
  CHECK_FALSE(second.existed);
  CHECK(second.id != first.id);
  CHECK(queue.submit(QueueDatabase::lines(3), other).id == second.id);
  CHECK(queue.value(list_jobs(queue.connection)).size() == 2);
}

TEST_CASE("several that submit one file at once make one job", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const std::string path = queue.folder / "same.jsonl";
  {
    std::ofstream file(path);
    for (const std::string& line : QueueDatabase::lines(2000)) file << line << "\n";
  }
  std::vector<int64_t> ids(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ids.size(); ++i) {
    threads.emplace_back([&, i] {
      PgConnection own = queue.server.connect();
      BatchInput input = BatchInput::open(path).value();
      JobSpec spec;
      spec.name = "same.jsonl";
      spec.model = "m";
      const Result<SubmittedJob> job = submit_job(own, spec, input, {});
      if (job.ok()) ids[i] = job->id;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ids[0] > 0);
  for (const int64_t id : ids) CHECK(id == ids[0]);
  CHECK(queue.status(ids[0]).rows == 2000);
  CHECK(queue.value(queue.connection.query("SELECT count(*) FROM spillway.inputs")).integer(0, 0) ==
        2000);
}

TEST_CASE("a job's results are fetched in the file's order when it is complete", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  // Long and short ones, so that they are claimed in another order; blank lines have no row.
  std::vector<std::string> lines;
  for (int i = 0; i < 1200; ++i) {
    lines.push_back(R"({"prompt":"p","max_tokens":)" + std::to_string(1 + i % 50) + "}");
    if (i % 100 == 0) lines.emplace_back();
  }
  const SubmittedJob job = queue.submit(lines);
  CHECK(job.rows == 1200);
  const QueueWorker worker = QueueDatabase::worker(1);
  std::vector<int64_t> order;
  const auto fetched = [&] {
    return fetch_job(queue.connection, job.id, [](std::string_view) { return Status(); });
  };
  while (const std::optional<Claim> claim = queue.claim(worker)) {
    CHECK(fetched().code() == Code::kCapacity);
    for (const int64_t number : QueueDatabase::numbers(claim)) order.push_back(number);
    queue.write(worker, *claim);
  }
  CHECK(order.size() == 1200);
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  const std::vector<std::string> answers = queue.fetch(job.id);
  REQUIRE(answers.size() == 1200);
  for (size_t i = 0; i < answers.size(); ++i)
    CHECK(answers[i] == "answer " + std::to_string(order[i]));
  const JobStatus status = queue.status(job.id);
  CHECK(status.state == "done");
  CHECK(status.finished == 1200);
  CHECK(status.generated_tokens == 3600);
  CHECK(status.claimed == 0);
}

TEST_CASE("rows of a job that ends early say that they did not run", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const bool expires = GENERATE(false, true);
  JobSpec spec;
  if (expires) spec.deadline_seconds = 3600;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(4), spec);
  const QueueWorker worker = QueueDatabase::worker(1);
  const std::optional<Claim> claim = queue.claim(worker, 2);
  REQUIRE(claim);
  queue.write(worker, *claim, 0, 1);
  if (expires) {
    queue.sql("UPDATE spillway.jobs SET deadline = now() - interval '1 second'");
  } else {
    queue.ok(cancel_job(queue.connection, job.id));
    queue.ok(cancel_job(queue.connection, job.id));  // Once more changes nothing.
  }
  const JobStatus status = queue.status(job.id);
  CHECK(status.state == (expires ? "expired" : "cancelled"));
  CHECK(status.finished == 1);
  // What comes too late is nobody's result, and nothing more of it is claimed.
  const WrittenResults late = queue.write(worker, *claim);
  CHECK(late.written == 0);
  CHECK(late.late + late.ended == 1);  // The other row has its result.
  CHECK_FALSE(queue.claim(worker));
  CHECK(queue.value(renew_lease(queue.connection, worker, {}, {job.id})) ==
        std::vector<int64_t>{job.id});
  const std::vector<std::string> lines = queue.fetch(job.id);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "answer 1");
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    CHECK(line["custom_id"] == "r" + std::to_string(i + 1));
    CHECK(line["error"]["code"] == (expires ? "batch_expired" : "batch_cancelled"));
    CHECK(line["id"] == "batch_req_run-1-0_" + std::to_string(i + 1));
  }
  // The file may be handed in again.
  const SubmittedJob again = queue.submit(QueueDatabase::lines(4), spec);
  CHECK(again.id != job.id);
  CHECK(delete_job(queue.connection, again.id).code() == Code::kCapacity);
  queue.ok(delete_job(queue.connection, job.id));
  CHECK(job_status(queue.connection, job.id).status().code() == Code::kNotFound);
  CHECK(cancel_job(queue.connection, job.id).code() == Code::kNotFound);
}

TEST_CASE("lines come to workers as they are in the file, and what is known of them", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const std::string odd = std::string("no JSON \xff\xfe\0 at all", 18);
  const SubmittedJob job =
      queue.submit({odd, R"({"custom_id":"a","prompt":"x"})", R"({"custom_id":"a","prompt":"y"})",
                    std::string(kBatchLineBytesMax + 1, ' ') + "x"});
  CHECK(job.rows == 4);
  std::map<int64_t, ClaimedRow> rows;
  const QueueWorker worker = QueueDatabase::worker(1);
  while (const std::optional<Claim> claim = queue.claim(worker)) {
    for (const ClaimedRow& row : claim->rows) rows[row.number] = row;
  }
  REQUIRE(rows.size() == 4);
  CHECK(rows[1].line == odd);
  CHECK_FALSE(rows[2].repeats_id);
  CHECK(rows[3].repeats_id);
  CHECK(rows[4].too_long);
  CHECK(rows[4].line.empty());
  BatchInput empty = [&] {
    const std::string path = queue.folder / "empty.jsonl";
    std::ofstream(path) << "\n\n";
    return BatchInput::open(path).value();
  }();
  JobSpec spec;
  spec.name = "empty.jsonl";
  CHECK(submit_job(queue.connection, spec, empty, {}).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a deadline ends a job without anybody's asking", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  JobSpec spec;
  spec.deadline_seconds = 3600;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(4), spec);
  const QueueWorker worker = QueueDatabase::worker(1);
  const std::optional<Claim> claim = queue.claim(worker, 2);
  REQUIRE(claim);
  queue.sql("UPDATE spillway.jobs SET deadline = now() - interval '1 second'");
  CHECK(queue.value(renew_lease(queue.connection, worker, queue.claims, {job.id})) ==
        std::vector<int64_t>{job.id});
  CHECK(queue.write(worker, *claim).written == 0);
  CHECK(queue.submit(QueueDatabase::lines(4), spec).id != job.id);
}

TEST_CASE("no claim of a job that has ended is left", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(4));
  const QueueWorker worker = QueueDatabase::worker(1);
  REQUIRE(queue.claim(worker, 2));
  queue.sql("UPDATE spillway.jobs SET ended = true");  // The claim was made in this very moment.
  queue.renew(worker);
  CHECK(queue.value(queue.connection.query("SELECT count(*) FROM spillway.claims")).integer(0, 0) ==
        0);
}

TEST_CASE("a job's run has its name whichever way its first rows are claimed", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  queue.submit(QueueDatabase::lines(1));
  const QueueWorker gone = QueueDatabase::worker(1), worker = QueueDatabase::worker(2);
  REQUIRE(queue.claim(gone));
  queue.sql("UPDATE spillway.jobs SET run_id = NULL");  // It vanished between the two steps.
  queue.vanish(gone);
  CHECK(queue.claim(worker)->run_id == "run-2-0");
}

TEST_CASE("a file that changes while it is sent is refused with that reason", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const std::string path = queue.folder / "changes.jsonl";
  const auto write = [&](const std::string& word) {
    std::ofstream file(path);
    for (int i = 0; i < 4000; ++i)
      file << "{\"prompt\":\"" << word << i << std::string(500, 'x') << "\"}\n";
  };
  write("a");
  BatchInput input = BatchInput::open(path).value();
  JobSpec spec;
  spec.name = "changes.jsonl";
  spec.model = "m";
  const Status status =
      submit_job(queue.connection, spec, input, [&](int64_t) { write("b"); }).status();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("changed"));
  CHECK_FALSE(queue.connection.broken());
  CHECK(queue.value(list_jobs(queue.connection)).empty());
}

TEST_CASE("the status says who may take a job", "[slow]") {
  if (!test::has_postgres()) return;
  QueueDatabase queue;
  const SubmittedJob job = queue.submit(QueueDatabase::lines(40));
  CHECK(queue.status(job.id).workers == 0);
  const QueueWorker worker = QueueDatabase::worker(1), other = QueueDatabase::worker(2, "m 1 q8");
  const std::optional<Claim> claim = queue.claim(worker, 5);
  REQUIRE(claim);
  queue.renew(other);
  JobStatus status = queue.status(job.id);
  CHECK(status.state == "running");
  CHECK(status.workers == 1);
  CHECK(status.workers_else == 1);
  CHECK(status.claimed == 5);
  CHECK(status.identity == worker.identity);
  queue.vanish(worker);
  status = queue.status(job.id);
  CHECK(status.claimed == 0);
  CHECK(status.abandoned == 5);
  JobSpec other_cache;
  other_cache.kv_format = "q4";
  CHECK(queue.status(queue.submit(QueueDatabase::lines(2), other_cache).id).workers == 0);
  const std::vector<WorkerStatus> workers = queue.value(list_workers(queue.connection));
  REQUIRE(workers.size() == 2);
  CHECK(workers[0].name == "w1");
  CHECK(workers[0].claims == 1);
  CHECK(workers[0].expires_in_seconds < 0);
  CHECK(workers[1].expires_in_seconds > 0);
  const QueueSample sample = queue.value(sample_queue(queue.connection, {"x", "m"}, 10));
  CHECK(sample.rows == 40);
  CHECK(sample.lines.size() == 10);
  CHECK(queue.value(sample_queue(queue.connection, {"x"}, 10)).rows == 0);
}

}  // namespace
}  // namespace spillway::queue_jobs_test
