// The thread that runs batches: what it does where something is in the way.
#include "server/batches/batch_worker.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/server/batches/batch_stores.h"
#include "tests/support/patience.h"

namespace spillway::batch_worker_test {
namespace {

using test::batch_line;

struct Work : test::BatchStores {
  Work() { make(); }
  ~Work() {
    worker.reset();
    engine.drain(0);
  }
  void make() {
    BatchWorkerOptions options;
    options.directory = folder.path();
    options.retry_seconds = 0.02;
    options.identity = "fake";
    options.sequences_max = 8;
    worker = std::make_unique<BatchWorker>(*files, *batches, engine, context, options);
  }
  // The batch once `done` holds of it.
  template <typename Predicate>
  BatchRecord wait(const std::string& id, Predicate done) const {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(test::kPatience);
    for (;;) {
      const BatchRecord record = batches->get(id).value();
      if (done(record)) return record;
      INFO(batch_state_name(record.state) << " " << record.detail);
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  BatchRecord wait_state(const std::string& id, BatchState state) const {
    return wait(id, [&](const BatchRecord& record) { return record.state == state; });
  }

  std::unique_ptr<BatchWorker> worker;
};

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += batch_line(std::to_string(i), {{"prompt", "x"}, {"max_tokens", 2}});
  }
  return text;
}

TEST_CASE("a batch that has to wait says so, and those behind it run meanwhile") {
  Work w;
  const std::string in_the_way = w.folder.path() + "/batch_1.journal";
  std::filesystem::create_directory(in_the_way);
  w.add_batch("batch_1", w.add_file(lines(3)));
  w.add_batch("batch_2", w.add_file(lines(2)));
  w.worker->start();
  CHECK(w.wait_state("batch_2", BatchState::kCompleted).completed == 2);
  const BatchRecord waiting =
      w.wait("batch_1", [](const BatchRecord& record) { return !record.detail.empty(); });
  CHECK(waiting.state == BatchState::kInProgress);
  CHECK_THAT(waiting.detail, Catch::Contains("batch_1.journal"));
  std::filesystem::remove(in_the_way);
  const BatchRecord done = w.wait_state("batch_1", BatchState::kCompleted);
  CHECK(done.completed == 3);
  CHECK(done.detail.empty());
}

TEST_CASE("a batch that waits can be cancelled") {
  Work w;
  const std::string in_the_way = w.folder.path() + "/batch_1.journal";
  std::filesystem::create_directory(in_the_way);
  w.add_batch("batch_1", w.add_file(lines(3)));
  w.worker->start();
  w.wait("batch_1", [](const BatchRecord& record) { return !record.detail.empty(); });
  std::filesystem::remove(in_the_way);
  REQUIRE(w.batches
              ->update("batch_1",
                       [](BatchRecord& record) {
                         record.enter(BatchState::kCancelling, 2000);
                         return Status();
                       })
              .ok());
  w.worker->wake();
  w.wait_state("batch_1", BatchState::kCancelled);
}

TEST_CASE("a batch whose time is up ends with what it has") {
  Work w;
  w.add_batch("batch_1", w.add_file(lines(3)), BatchState::kInProgress, 3);
  REQUIRE(w.batches
              ->update("batch_1",
                       [](BatchRecord& record) {
                         record.expires_at = 2000;
                         return Status();
                       })
              .ok());
  w.worker->start();
  const BatchRecord expired = w.wait_state("batch_1", BatchState::kExpired);
  CHECK(expired.failed == 3);
  CHECK(expired.output_file.empty());
  CHECK(w.lines_of(expired.error_file)[2]["error"]["code"] == "batch_expired");
  CHECK(w.engine.submitted() == 0);
}

TEST_CASE("an input file that expires stays until its batch has ended") {
  Work w;
  const std::string needed = w.add_file(lines(2), 2000);
  const std::string other = w.add_file(lines(2), 2000);
  w.add_batch("batch_1", needed);
  w.worker->start();
  CHECK(w.wait_state("batch_1", BatchState::kCompleted).completed == 2);
  CHECK(w.files->find("me", other).status().code() == Code::kNotFound);
  w.worker->stop();
  w.make();
  w.add_batch("batch_2", w.add_file(lines(1)));
  w.worker->start();
  w.wait_state("batch_2", BatchState::kCompleted);
  CHECK(w.files->find("me", needed).status().code() == Code::kNotFound);
}

TEST_CASE("a batch whose input is gone before it began fails, and says why") {
  Work w;
  w.add_batch("batch_1", "file-0123");
  w.worker->start();
  const BatchRecord failed = w.wait_state("batch_1", BatchState::kFailed);
  REQUIRE(failed.faults.size() == 1);
  CHECK(failed.faults[0].code == "file_not_found");
}

}  // namespace
}  // namespace spillway::batch_worker_test
