// The thread that runs batches: what it does where something is in the way.
#include "server/batches/batch_worker.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
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
    options.identity = identity;
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

  // A server of another model or of the same one, on the same folder.
  void begin_again(const std::string& model, std::vector<std::string> names) {
    worker.reset();
    identity = model;
    context.model_names = std::move(names);
    make();
    worker->start();
  }
  void cancel(const std::string& id) const {
    REQUIRE(batches
                ->update(id,
                         [](BatchRecord& record) {
                           record.enter(BatchState::kCancelling, 2000);
                           return Status();
                         })
                .ok());
    worker->wake();
  }
  // A batch of this many lines in progress, of which the engine answers none until release().
  void hold(const std::string& id, int count) {
    engine.hold();
    add_batch(id, add_file(lines(count)));
    worker->start();
    REQUIRE(engine.wait_submitted(std::min(count, 8)));
  }
  // A batch with one line done of three, that stopped there.
  void stop_within(const std::string& id) {
    hold(id, 3);
    worker->stop();
    auto journal = Journal::open(folder.path() + "/" + id + ".journal").value();
    const std::string line =
        Json{{"custom_id", "0"}, {"response", {{"status_code", 200}}}, {"error", nullptr}}.dump();
    REQUIRE(journal.finish({1, false, 1, 2, line}).ok());
    REQUIRE(journal.commit().ok());
    engine.release();
  }

  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += batch_line(std::to_string(i),
                         {{"model", "fake-model"}, {"prompt", "x"}, {"max_tokens", 2}});
    }
    return text;
  }

  std::string identity = "fake";
  std::unique_ptr<BatchWorker> worker;
};

std::string lines(int count) {
  return Work::lines(count);
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
  w.cancel("batch_1");
  w.wait_state("batch_1", BatchState::kCancelled);
}

TEST_CASE("what takes no engine does not wait for the batch that runs") {
  Work w;
  const std::string input = w.add_file(lines(3));
  w.hold("batch_1", 3);
  w.add_batch("batch_2", input);
  w.add_batch("batch_3", w.add_file("{\n"));
  w.worker->wake();
  CHECK(w.wait_state("batch_3", BatchState::kFailed).faults.size() == 1);
  CHECK(w.wait_state("batch_2", BatchState::kInProgress).total == 3);
  w.cancel("batch_2");
  const BatchRecord cancelled = w.wait_state("batch_2", BatchState::kCancelled);
  CHECK(cancelled.failed == 3);
  CHECK(w.lines_of(cancelled.error_file)[0]["error"]["code"] == "batch_cancelled");
  const BatchRecord late = w.add_batch("batch_4", input, BatchState::kInProgress, 3);
  REQUIRE(w.batches
              ->update(late.id,
                       [](BatchRecord& record) {
                         record.expires_at = 2000;
                         return Status();
                       })
              .ok());
  w.worker->wake();
  CHECK(w.wait_state("batch_4", BatchState::kExpired).failed == 3);
  CHECK(w.batches->get("batch_1")->state == BatchState::kInProgress);
  w.engine.release();
  CHECK(w.wait_state("batch_1", BatchState::kCompleted).completed == 3);
}

TEST_CASE("a batch that is cancelled before it was looked through has no results") {
  Work w;
  w.add_batch("batch_1", w.add_file(lines(3)), BatchState::kCancelling);
  w.worker->start();
  const BatchRecord cancelled = w.wait_state("batch_1", BatchState::kCancelled);
  CHECK(cancelled.error_file.empty());
  CHECK(cancelled.failed == 0);
}

TEST_CASE("a batch waits for the model that it began with, and loses nothing") {
  Work w;
  w.stop_within("batch_1");
  w.begin_again("other", {"other-model"});
  const auto waits = [](const BatchRecord& record) { return !record.detail.empty(); };
  CHECK_THAT(w.wait("batch_1", waits).detail, Catch::Contains("began with another model"));
  SECTION("and goes on when it is back, under another name, too") {
    w.begin_again("fake", {"renamed"});
    const BatchRecord done = w.wait_state("batch_1", BatchState::kCompleted);
    CHECK(done.completed == 3);
    CHECK(done.detail.empty());
  }
  SECTION("or ends with what is done, where it is cancelled") {
    w.cancel("batch_1");
    const BatchRecord done = w.wait_state("batch_1", BatchState::kCancelled);
    CHECK(done.completed == 1);
    CHECK(done.failed == 2);
  }
}

TEST_CASE("a batch that has not begun runs on any model that its lines name") {
  Work w;
  w.hold("batch_1", 3);
  w.add_batch("batch_2", w.add_file(lines(2)));
  w.worker->wake();
  w.wait_state("batch_2", BatchState::kInProgress);
  w.worker->stop();
  w.engine.release();
  SECTION("such as the same one with other formats") {
    w.begin_again("fake in 4 bits", {"fake-model"});
    CHECK(w.wait_state("batch_2", BatchState::kCompleted).completed == 2);
  }
  SECTION("and waits where none is") {
    w.begin_again("other", {"other-model"});
    const BatchRecord waiting =
        w.wait("batch_2", [](const BatchRecord& record) { return !record.detail.empty(); });
    CHECK_THAT(waiting.detail, Catch::Contains("'fake-model'"));
    w.cancel("batch_2");
    CHECK(w.wait_state("batch_2", BatchState::kCancelled).failed == 2);
  }
}

TEST_CASE("a crash is blamed on the batch that ran, though another one runs first now") {
  Work w;
  for (const char* id : {"batch_1", "batch_2"}) {
    w.add_batch(id, w.add_file(lines(3)), BatchState::kInProgress, 3);
    REQUIRE(Journal::create(w.folder.path() + "/" + id + ".journal", {}).ok());
  }
  w.engine.hold();
  w.worker->start({crash_run_of("batch_2"), {2, 3}});
  const auto suspects = [&](const std::string& id) {
    w.worker->stop();
    const Journal journal = Journal::open(w.folder.path() + "/" + id + ".journal").value();
    return (journal.suspect(2) != nullptr ? 1 : 0) + (journal.suspect(3) != nullptr ? 1 : 0);
  };
  REQUIRE(w.engine.wait_submitted(3));
  SECTION("not on that one") {
    CHECK(suspects("batch_1") == 0);
  }
  SECTION("but on itself") {
    w.cancel("batch_1");
    REQUIRE(w.engine.wait_submitted(4));  // The first of its lines; the suspects wait.
    CHECK(suspects("batch_2") == 2);
  }
}

TEST_CASE("a journal that cannot be read is put aside") {
  Work w;
  w.stop_within("batch_1");
  const std::string path = w.folder.path() + "/batch_1.journal";
  std::filesystem::resize_file(path, 0);
  std::ofstream(path) << std::string(5000, 'x');
  SECTION("and its batch runs anew") {
    w.begin_again("fake", {"fake-model"});
    CHECK(w.wait_state("batch_1", BatchState::kCompleted).completed == 3);
  }
  SECTION("and its batch can be cancelled") {
    REQUIRE(w.batches
                ->update("batch_1",
                         [](BatchRecord& record) {
                           record.enter(BatchState::kCancelling, 2000);
                           return Status();
                         })
                .ok());
    w.begin_again("fake", {"fake-model"});
    CHECK(w.wait_state("batch_1", BatchState::kCancelled).failed == 3);
  }
  CHECK(std::filesystem::exists(path + ".unreadable"));
}

TEST_CASE("journals that a crash left behind their batches go with the next start") {
  Work w;
  const std::string left = w.folder.path() + "/batch_1.journal";
  { REQUIRE(Journal::create(left, {}).ok()); }
  w.worker->start();
  w.add_batch("batch_2", w.add_file(lines(1)));
  w.worker->wake();
  w.wait_state("batch_2", BatchState::kCompleted);
  CHECK_FALSE(std::filesystem::exists(left));
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
