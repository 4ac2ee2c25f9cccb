#include "server/cli/queue/queue_report.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace spillway::queue_report_test {
namespace {

JobStatus running() {
  JobStatus job;
  job.id = 12;
  job.name = "prompts.jsonl";
  job.model = "opt-1.3b";
  job.state = "running";
  job.identity = "opt-1.3b 0a1b bf16/bf16";
  job.rows = 1000;
  job.finished = 250;
  job.failed = 3;
  job.claimed = 64;
  job.abandoned = 8;
  job.prompt_tokens = 5000;
  job.generated_tokens = 12'000;
  job.run_seconds = 600;
  job.workers = 2;
  return job;
}

TEST_CASE("the status of a job says how far it is and when it will be done") {
  const std::string text = text_of(running());
  CHECK_THAT(text, Catch::Contains("job 12: running"));
  CHECK_THAT(text, Catch::Contains("250 of 1000 done, 3 of them failed; 64 in work; 8 given back"));
  CHECK_THAT(text, Catch::Contains("20 tokens/s in 10 min"));
  CHECK_THAT(text, Catch::Contains("about 30 min"));  // Three times what a quarter took
  CHECK_THAT(text, !Catch::Contains("waits"));
  const auto json = nlohmann::json::parse(json_of(running()));
  CHECK(json["finished"] == 250);
  CHECK(json["given_back"] == 8);
  CHECK(json["tokens_per_second"] == 20.0);
  CHECK(json["seconds_left"] == 1800.0);
  CHECK(json["deadline_in_seconds"].is_null());
}

TEST_CASE("a job that does not go on says why") {
  JobStatus job = running();
  job.workers = 0;
  CHECK_THAT(text_of(job), Catch::Contains("no worker is there"));
  job.workers_else = 3;
  CHECK_THAT(text_of(job), Catch::Contains("no worker may take it: 3 that are there"));
  job.workers = 1;
  job.set_aside = 2;
  job.cause = "disk on fire";
  CHECK_THAT(text_of(job), Catch::Contains("disk on fire") && Catch::Contains("queue retry"));
  job.deadline_in_seconds = 90;
  CHECK_THAT(text_of(job), Catch::Contains("deadline"));
}

TEST_CASE("a job that has ended has no time left") {
  JobStatus job = running();
  job.state = "cancelled";
  const std::string text = text_of(job);
  CHECK_THAT(text, Catch::Contains("750 rows did not run"));
  CHECK_THAT(text, !Catch::Contains("left") && !Catch::Contains("waits"));
  CHECK(nlohmann::json::parse(json_of(job))["seconds_left"].is_null());
}

TEST_CASE("tables of jobs and workers have a line each") {
  CHECK(text_of(std::vector<JobStatus>()) == "There are no jobs.\n");
  CHECK(text_of(std::vector<WorkerStatus>()) == "There are no workers.\n");
  const std::string jobs = text_of(std::vector<JobStatus>{running(), running()});
  CHECK(std::count(jobs.begin(), jobs.end(), '\n') == 3);
  WorkerStatus worker;
  worker.name = "gpu1-77";
  worker.model = "opt-1.3b";
  worker.expires_in_seconds = 30;
  const WorkerStatus gone = {"gpu2-5", "opt-1.3b", "", 10, -1, 2};
  const std::string workers = text_of(std::vector<WorkerStatus>{worker, gone});
  CHECK_THAT(workers, Catch::Contains("holds") && Catch::Contains("is over"));
  const auto json = nlohmann::json::parse(json_of(std::vector<WorkerStatus>{worker, gone}));
  CHECK(json[1]["claims"] == 2);
  CHECK(nlohmann::json::parse(json_of(std::vector<JobStatus>{})).empty());
}

}  // namespace
}  // namespace spillway::queue_report_test
