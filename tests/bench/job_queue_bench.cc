// What the queue in PostgreSQL costs by itself: rows are submitted, and drained by workers that
// echo them. Prints the times of claims and writes for each tenth of the rows, so that a claim that
// grows with what is done shows.
//
//   job_queue_bench URL [ROWS 2000000] [WORKERS 8] [ROWS A CLAIM 64] [PAUSE MS 0]
//
// Without a pause the workers ask as fast as they are answered, and where there are more of them
// than cores, most of a call is waiting for one; with it each idles so long between two claims. It
// makes a job of its own and deletes it at the end. Without a URL it says so and ends.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "server/batches/batch_input.h"
#include "server/queue/queue_claims.h"
#include "server/queue/queue_jobs.h"
#include "server/queue/queue_schema.h"
#include "tests/support/temp_directory.h"

namespace spillway {
namespace {

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

struct Times {
  std::vector<double> claims, writes;  // Seconds of each call
};

void print(const char* what, std::vector<double>& seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return 1000 * seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  };
  std::printf("  %s ms: median %.2f, 99 %% %.2f, most %.1f", what, at(0.5), at(0.99), at(1));
}

constexpr int kTenths = 10;

class Drain {
 public:
  Drain(std::string url, int64_t rows, int64_t rows_of_claim, int64_t pause_ms)
      : url_(std::move(url)), rows_(rows), rows_of_claim_(rows_of_claim), pause_ms_(pause_ms) {}

  void work(int64_t number) {
    PgOptions options;
    options.settings = kWorkerSettings;
    PgConnection connection = must(PgConnection::connect(url_, options));
    QueueWorker worker;
    worker.id = number;
    worker.name = "echo-" + std::to_string(number);
    worker.models = {"echo"};
    worker.identity = "echo";
    worker.run_id = [](const std::string&, uint64_t) { return std::string("0123456789abcdef"); };
    worker.lease_seconds = 600;
    must(renew_lease(connection, worker, {}, {}));
    for (;;) {
      const double began = steady_seconds();
      std::optional<Claim> claim =
          must(claim_rows(connection, worker, ClaimRoom{.rows = rows_of_claim_}, true));
      if (!claim) break;
      const double claimed = steady_seconds();
      std::vector<RowResult> results;
      for (const ClaimedRow& row : claim->rows) {
        results.push_back({claim->id, claim->generation, claim->job, claim->job_rows, row.number,
                           false, 8, 8, row.line});
      }
      const double echoed = steady_seconds();
      must(write_results(connection, worker, results, {{claim->id, claim->generation}}));
      const double written = steady_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
      note(claimed - began, written - echoed, static_cast<int64_t>(results.size()));
    }
    check(leave_queue(connection, worker));
  }

  int64_t done() const { return done_; }

  void report() {
    for (int tenth = 0; tenth < kTenths; ++tenth) {
      std::printf("%3d %% of the rows:", 10 * (tenth + 1));
      print("claim", times_[tenth].claims);
      print("write", times_[tenth].writes);
      std::printf("\n");
    }
  }

 private:
  void note(double claim, double write, int64_t rows) {
    const std::lock_guard lock(mutex_);
    const int64_t tenth = std::min<int64_t>(kTenths - 1, done_ * kTenths / rows_);
    times_[tenth].claims.push_back(claim);
    times_[tenth].writes.push_back(write);
    done_ += rows;
  }

  const std::string url_;
  const int64_t rows_, rows_of_claim_, pause_ms_;
  std::mutex mutex_;
  int64_t done_ = 0;
  Times times_[kTenths];
};

int run(int count, char** arguments) {
  if (count < 2) {
    std::printf(
        "usage: job_queue_bench URL [ROWS] [WORKERS] [ROWS A CLAIM] [PAUSE MS]; there is no URL\n");
    return 0;
  }
  const std::string url = arguments[1];
  const int64_t rows = count > 2 ? std::atoll(arguments[2]) : 2'000'000;
  const int64_t workers = count > 3 ? std::atoll(arguments[3]) : 8;
  const int64_t rows_of_claim = count > 4 ? std::atoll(arguments[4]) : 64;
  const int64_t pause_ms = count > 5 ? std::atoll(arguments[5]) : 0;
  const TempDirectory folder;
  const std::string path = folder.path() + "/rows.jsonl";
  {
    std::ofstream file(path);
    for (int64_t row = 0; row < rows; ++row) {
      file << "{\"custom_id\":\"r" << row << "\",\"body\":{\"prompt\":\"Row " << row
           << "\",\"max_tokens\":8}}\n";
    }
  }
  PgConnection connection = must(PgConnection::connect(url, {}));
  connection.set_query_seconds(600);
  check(migrate_queue(connection));
  double began = steady_seconds();
  JobSpec spec;
  spec.name = "rows.jsonl";
  spec.model = "echo";
  spec.nonce = path + std::to_string(began);
  BatchInput input = must(BatchInput::open(path));
  const SubmittedJob job = must(submit_job(connection, spec, input, {}));
  std::printf("%lld rows submitted in %.1f s\n", static_cast<long long>(rows),
              steady_seconds() - began);
  began = steady_seconds();
  Drain drain(url, rows, rows_of_claim, pause_ms);
  std::vector<std::thread> threads;
  for (int64_t worker = 1; worker <= workers; ++worker) {
    threads.emplace_back([&drain, worker] { drain.work(worker); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = steady_seconds() - began;
  std::printf("drained by %lld workers in %.1f s: %.0f rows/s\n", static_cast<long long>(workers),
              seconds, static_cast<double>(rows) / seconds);
  drain.report();
  const JobStatus status = must(job_status(connection, job.id));
  std::printf("job: %s, %lld of %lld rows\n", status.state.c_str(),
              static_cast<long long>(status.finished), static_cast<long long>(status.rows));
  check(delete_job(connection, job.id));
  // Rows that were claimed twice would have one result all the same.
  std::printf("rows echoed: %lld\n", static_cast<long long>(drain.done()));
  return status.state == "done" && drain.done() == rows ? 0 : 1;
}

}  // namespace
}  // namespace spillway

int main(int count, char** arguments) {
  return spillway::run(count, arguments);
}
