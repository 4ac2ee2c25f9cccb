// The files of a batch's results, made from its journal.
#include "server/batches/batch_results.h"

#include <catch2/catch.hpp>

#include "tests/server/batches/batch_stores.h"

namespace spillway::batch_results_test {
namespace {

constexpr int64_t kNow = 5000;

struct Results : test::BatchStores {
  Results() {
    std::string content;
    for (const char* id : {"a", "b", "c"}) {
      content += test::batch_line(id, {{"prompt", "x"}});
    }
    record = add_batch("batch_1", add_file(content), BatchState::kFinalizing, 3);
    journal.emplace(Journal::create(folder.path() + "/batch_1.journal", {}).value());
  }
  void finish(int64_t row, int status) {
    const std::string line = Json{
        {"custom_id", std::string(1, static_cast<char>('a' + row - 1))},
        {"response", {{"status_code", status}}},
        {"error", nullptr}}.dump();
    REQUIRE(journal->finish({row, status != 200, 1, 1, line}).ok());
    REQUIRE(journal->commit().ok());
  }
  Result<BatchResults> write(BatchState end) {
    BatchInput input = BatchInput::open(files->path_of(record.input_file)).value();
    REQUIRE(summarize(input).ok());
    return write_batch_results(*journal, &input, record, end, context, kNow, *files);
  }

  BatchRecord record;
  std::optional<Journal> journal;
};

TEST_CASE("answers and errors go to files of their own, in the order of the lines") {
  Results r;
  r.finish(3, 200);
  r.finish(1, 200);
  r.finish(2, 400);
  const BatchResults results = r.write(BatchState::kCompleted).value();
  CHECK(results.completed == 2);
  CHECK(results.failed == 1);
  const std::vector<Json> answers = r.lines_of(results.output_file);
  REQUIRE(answers.size() == 2);
  CHECK(answers[0]["custom_id"] == "a");
  CHECK(answers[1]["custom_id"] == "c");
  CHECK(r.lines_of(results.error_file)[0]["custom_id"] == "b");
  const StoredFile file = r.files->find("me", results.output_file).value();
  CHECK(file.name == "batch_1_output.jsonl");
  CHECK(file.created_at == kNow);
  CHECK_FALSE(file.expires_at);
}

TEST_CASE("a file without lines is not made") {
  Results r;
  for (int64_t row = 1; row <= 3; ++row) r.finish(row, 200);
  const BatchResults results = r.write(BatchState::kCompleted).value();
  CHECK_FALSE(results.output_file.empty());
  CHECK(results.error_file.empty());
  CHECK(r.result_files().size() == 1);
}

TEST_CASE("lines that did not run are errors that say why") {
  Results r;
  r.finish(2, 200);
  const BatchState end = GENERATE(BatchState::kExpired, BatchState::kCancelled);
  const BatchResults results = r.write(end).value();
  CHECK(results.completed == 1);
  CHECK(results.failed == 2);
  const std::vector<Json> errors = r.lines_of(results.error_file);
  REQUIRE(errors.size() == 2);
  CHECK(errors[0]["custom_id"] == "a");
  CHECK(errors[1]["custom_id"] == "c");
  CHECK(errors[0]["response"].is_null());
  CHECK(errors[0]["error"]["code"] ==
        (end == BatchState::kExpired ? "batch_expired" : "batch_cancelled"));
}

TEST_CASE("results expire as long after now as the batch says") {
  Results r;
  r.record.output_seconds = 7200;
  r.finish(1, 200);
  const BatchResults results = r.write(BatchState::kCompleted).value();
  CHECK(r.files->find("me", results.output_file)->expires_at == kNow + 7200);
}

TEST_CASE("files that an earlier try left are replaced, and other batches' are not") {
  Results r;
  const std::string other = r.add_file("x\n", {}, "batch_2_output.jsonl", "batch_output");
  r.finish(1, 200);
  r.finish(2, 400);
  const BatchResults lost = r.write(BatchState::kCompleted).value();  // As a crash leaves them
  const BatchResults results = r.write(BatchState::kCompleted).value();
  CHECK(r.files->find("me", lost.output_file).status().code() == Code::kNotFound);
  CHECK(r.files->find("me", lost.error_file).status().code() == Code::kNotFound);
  CHECK(r.files->find("me", other).ok());
  CHECK(r.result_files().size() == 3);
  CHECK(r.lines_of(results.output_file).size() == 1);
}

TEST_CASE("limits on what a client hands in do not keep results back") {
  Results r;
  r.finish(1, 200);
  r.finish(2, 400);
  r.files.reset();
  FileLimits limits;
  limits.file_bytes_max = 1;
  limits.owner_bytes_max = 1;
  limits.owner_files_max = 1;
  r.files = FileStore::open(r.folder.path(), limits).value();
  const BatchResults results = r.write(BatchState::kCompleted).value();
  CHECK(r.lines_of(results.output_file).size() == 1);
  CHECK(r.lines_of(results.error_file).size() == 1);
  CHECK(r.files->check_room("me").code() == Code::kCapacity);
}

TEST_CASE("without the input there are the lines that are done") {
  Results r;
  r.finish(1, 200);
  const BatchResults results =
      write_batch_results(*r.journal, nullptr, r.record, BatchState::kCancelled, r.context, kNow,
                          *r.files)
          .value();
  CHECK(r.lines_of(results.output_file).size() == 1);
  CHECK(results.error_file.empty());
}

}  // namespace
}  // namespace spillway::batch_results_test
