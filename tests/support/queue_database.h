// A queue in a PostgreSQL of a test's own, jobs of made-up lines, and workers for it.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/batches/batch_input.h"
#include "server/queue/queue_claims.h"
#include "server/queue/queue_jobs.h"
#include "server/queue/queue_schema.h"
#include "tests/support/postgres_server.h"
#include "tests/support/temp_directory.h"

namespace spillway::test {

// REQUIRES: has_postgres().
class QueueDatabase {
 public:
  QueueDatabase() : connection(server.connect()) { ok(migrate_queue(connection)); }

  static void ok(const Status& status) {
    INFO(status.message());
    REQUIRE(status.ok());
  }
  template <class T>
  static T value(Result<T> result) {
    ok(result.status());
    return std::move(result).value();
  }

  static std::vector<std::string> lines(int64_t count) {
    std::vector<std::string> all;
    for (int64_t i = 1; i <= count; ++i) {
      all.push_back(R"({"custom_id":"r)" + std::to_string(i) + R"(","body":{"prompt":"p"}})");
    }
    return all;
  }

  SubmittedJob submit(const std::vector<std::string>& all, JobSpec spec = {}) {
    const std::string path = folder / "input.jsonl";
    std::ofstream file(path);
    for (const std::string& line : all) file << line << "\n";
    file.close();
    BatchInput input = value(BatchInput::open(path));
    if (spec.name.empty()) spec.name = "input.jsonl";
    if (spec.model.empty()) spec.model = "m";
    return value(submit_job(connection, spec, input, {}));
  }

  static QueueWorker worker(int64_t id, const std::string& identity = "m 1 bf16") {
    QueueWorker made;
    made.id = id;
    made.name = "w" + std::to_string(id);
    made.models = {"m", "alias"};
    made.identity = identity;
    made.format = "bf16";
    made.kv_format = "f16";
    made.kv_rule = "full";
    made.run_id = [id](const std::string&, uint64_t seed) {
      return "run-" + std::to_string(id) + "-" + std::to_string(seed);
    };
    return made;
  }

  // The worker's claims so far stay its own.
  std::optional<Claim> claim(const QueueWorker& worker, int64_t room = 100, bool take_over = true) {
    renew(worker);
    std::optional<Claim> made =
        value(claim_rows(connection, worker, ClaimRoom{.rows = room}, take_over));
    if (made) claims.push_back(made->id);
    return made;
  }
  void renew(const QueueWorker& worker) { value(renew_lease(connection, worker, claims, {})); }
  // Its rows, by the numbers of their lines.
  static std::vector<int64_t> numbers(const std::optional<Claim>& claim) {
    std::vector<int64_t> all;
    if (claim) {
      for (const ClaimedRow& row : claim->rows) all.push_back(row.number);
    }
    return all;
  }

  static RowResult result(const Claim& claim, const ClaimedRow& row,
                          const std::string& line = "answer") {
    RowResult made;
    made.claim = claim.id;
    made.generation = claim.generation;
    made.job = claim.job;
    made.job_rows = claim.job_rows;
    made.row = row.number;
    made.prompt_tokens = 2;
    made.generated_tokens = 3;
    made.line = line + " " + std::to_string(row.number);
    return made;
  }
  // Writes results of the claim's rows from `first` on; of all of them, it is done.
  WrittenResults write(const QueueWorker& worker, const Claim& claim, size_t first = 0,
                       size_t count = SIZE_MAX, const std::string& line = "answer") {
    std::vector<RowResult> results;
    for (size_t i = first; i < claim.rows.size() && i - first < count; ++i) {
      results.push_back(result(claim, claim.rows[i], line));
    }
    std::vector<ClaimId> done;
    if (results.size() == claim.rows.size()) done.push_back({claim.id, claim.generation});
    return value(write_results(connection, worker, results, done));
  }

  std::vector<std::string> fetch(int64_t job) {
    std::vector<std::string> all;
    ok(fetch_job(connection, job, [&](std::string_view line) {
      all.emplace_back(line);
      return Status();
    }));
    return all;
  }
  JobStatus status(int64_t job) { return value(job_status(connection, job)); }
  void sql(const std::string& text) { ok(connection.execute(text)); }
  // The worker is not heard of for longer than its lease.
  void vanish(const QueueWorker& worker) {
    sql("UPDATE spillway.workers SET expires = now() - interval '1 second' WHERE id = " +
        std::to_string(worker.id));
  }

  TempDirectory folder;
  PostgresServer server;
  PgConnection connection;
  std::vector<int64_t> claims;  // By claim()
};

}  // namespace spillway::test
