// spillway batch --server: from the file to the output, over a server that stops in between,
// refuses, or is told to end; and which flags go with it.
#include "server/cli/batch/remote_batch.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

#include "server/cli/batch/batch.h"
#include "tests/server/batches/batch_server.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/patience.h"

namespace spillway::remote_batch_test {
namespace {

using test::batch_line;
using test::BatchServer;

struct Job {
  explicit Job(const BatchServer& server) {
    flags.server = server.url();
    files.input = folder / "in.jsonl";
    files.output = folder / "out.jsonl";
    files.progress = "none";
  }

  void write(const std::string& text) const { std::ofstream(files.input) << text; }
  void write_lines(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const int tokens = i % 5 == 3 ? -1 : 2;  // Every fifth line is an error.
      text += batch_line("l" + std::to_string(i), {{"prompt", "a"}, {"max_tokens", tokens}});
    }
    write(text);
  }

  Result<RemoteBatchOutcome> run() {
    test::Captured captured;
    auto outcome = run_remote_batch(flags, files, /*poll_seconds=*/0.05);
    log += captured.end();
    return outcome;
  }

  std::vector<Json> out() const {
    std::ifstream in(files.output);
    std::vector<Json> lines;
    for (std::string text; std::getline(in, text);) lines.push_back(Json::parse(text));
    return lines;
  }

  // The id that the log names.
  std::string batch_id() const {
    const size_t at = log.find("batch_");
    REQUIRE(at != std::string::npos);
    return log.substr(at, log.find(';', at) - at);
  }

  TempDirectory folder;
  RemoteBatchFlags flags;
  RemoteBatchFiles files;
  std::string log;
};

std::string message_of(const Result<RemoteBatchOutcome>& outcome) {
  return std::string(outcome.status().message());
}

TEST_CASE("a batch at a server gives the output that one here would") {
  BatchServer server;
  Job job(server);
  job.write_lines(20);
  const auto outcome = job.run();
  INFO(job.log);
  REQUIRE(outcome.ok());
  CHECK(outcome->failed == 4);
  const std::vector<Json> lines = job.out();
  REQUIRE(lines.size() == 20);
  for (size_t i = 0; i < 20; ++i) {
    CHECK(lines[i]["custom_id"] == "l" + std::to_string(i));
    CHECK(lines[i]["response"]["status_code"] == (i % 5 == 3 ? 400 : 200));
  }
  CHECK_THAT(job.log, Catch::Contains("16 of 20 lines completed, 4 failed"));
  // Nothing else is left beside it.
  CHECK(std::distance(std::filesystem::directory_iterator(job.folder.path()), {}) == 2);
  // What is there is not replaced unless that is asked for.
  CHECK_THAT(message_of(job.run()), Catch::Contains("--overwrite"));
  job.files.overwrite = true;
  CHECK(job.run().ok());
  // Its results can be fetched again.
  job.flags.batch_id = job.batch_id();
  job.files.input.clear();
  std::filesystem::remove(job.files.output);
  CHECK(job.run().ok());
  CHECK(job.out().size() == 20);
}

TEST_CASE("an input that the server refuses is explained line by line") {
  BatchServer server;
  Job job(server);
  job.write(batch_line("a", {{"prompt", "a"}}) + "{\n");
  const auto outcome = job.run();
  CHECK(outcome.status().code() == Code::kInvalidArgument);
  CHECK_THAT(job.log, Catch::Contains("line 2: "));
  CHECK_FALSE(std::filesystem::exists(job.files.output));
  job.write(R"({"prompt": "a"})");
  CHECK_THAT(message_of(job.run()), Catch::Contains("line 1") && Catch::Contains("custom_id"));
  job.write("\n\n");
  CHECK_THAT(message_of(job.run()), Catch::Contains("no lines"));
}

TEST_CASE("the endpoint is that of the first line") {
  const TempDirectory folder;
  std::ofstream(folder / "in") << "\n" + batch_line("a", Json::object(), "/v1/chat/completions");
  CHECK(endpoint_of(folder / "in").value() == "/v1/chat/completions");
}

TEST_CASE("a server that ends and starts again costs nothing but time") {
  BatchServer::Options options;
  options.engine.round_seconds = 0.01;
  BatchServer server(options);
  Job job(server);
  job.write_lines(100);
  std::future<Result<RemoteBatchOutcome>> running =
      std::async(std::launch::async, [&] { return job.run(); });
  REQUIRE(server.engine->wait_submitted(10));
  server.stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  server.begin();
  REQUIRE(running.wait_for(std::chrono::duration<double>(test::kPatience)) ==
          std::future_status::ready);
  const auto outcome = running.get();
  INFO(job.log);
  REQUIRE(outcome.ok());
  CHECK(job.out().size() == 100);
}

TEST_CASE("an interrupted command leaves the batch running and says how to see it again") {
  BatchServer server;
  server.engine->hold();
  Job job(server);
  job.write_lines(10);
  std::future<Result<RemoteBatchOutcome>> running =
      std::async(std::launch::async, [&] { return job.run(); });
  REQUIRE(server.engine->wait_submitted(1));
  std::raise(SIGINT);
  REQUIRE(running.wait_for(std::chrono::duration<double>(test::kPatience)) ==
          std::future_status::ready);
  const auto interrupted = running.get();
  CHECK(interrupted.status().code() == Code::kCancelled);
  const std::string id = job.batch_id();
  CHECK_THAT(message_of(interrupted),
             Catch::Contains("--batch-id " + id + " --output") && Catch::Contains("--cancel"));
  server.engine->release();
  job.flags.batch_id = id;
  job.files.input.clear();
  REQUIRE(job.run().ok());
  CHECK(job.out().size() == 10);
}

TEST_CASE("a batch can be cancelled, and what it has done fetched") {
  BatchServer server;
  server.engine->hold();
  Job job(server);
  job.write_lines(10);
  std::future<Result<RemoteBatchOutcome>> running =
      std::async(std::launch::async, [&] { return job.run(); });
  REQUIRE(server.engine->wait_submitted(1));
  std::raise(SIGTERM);
  REQUIRE(running.wait_for(std::chrono::duration<double>(test::kPatience)) ==
          std::future_status::ready);
  CHECK(running.get().status().code() == Code::kCancelled);
  job.flags.batch_id = job.batch_id();
  job.flags.cancel = true;
  job.files.input.clear();
  const std::string output = std::exchange(job.files.output, "");
  CHECK(job.run().ok());
  CHECK_THAT(job.log, Catch::Contains("--output FILE"));
  server.engine->release();
  job.flags.cancel = false;
  job.files.output = output;
  const auto outcome = job.run();
  CHECK(outcome.status().code() == Code::kIoError);
  CHECK_THAT(message_of(outcome), Catch::Contains("cancelled"));
  CHECK(job.out().size() == 10);
}

TEST_CASE("a key is read from its file, and a missing one is explained") {
  BatchServer::Options options;
  options.keys = {"key-1"};
  BatchServer server(options);
  Job job(server);
  job.write_lines(2);
  CHECK_THAT(message_of(job.run()), Catch::Contains("401") && Catch::Contains("--api-key-file"));
  std::ofstream(job.folder / "key") << "# of the server\n\n  key-1 more words\nkey-2\n";
  job.flags.api_key_file = job.folder / "key";
  CHECK(job.run().ok());
  CHECK(read_client_key(job.folder / "key").value() == "key-1");
  std::ofstream(job.folder / "empty") << "# none\n";
  CHECK_FALSE(read_client_key(job.folder / "empty").ok());
  CHECK_FALSE(read_client_key(job.folder / "none").ok());
}

TEST_CASE("a server that is not there is not waited for") {
  BatchServer server;
  Job job(server);
  job.write_lines(2);
  server.stop();
  const auto outcome = job.run();
  CHECK(outcome.status().code() == Code::kIoError);
  CHECK_THAT(message_of(outcome), Catch::Contains("is the server running"));
}

// `spillway batch ARGUMENTS`, as far as its flags.
std::string refusal(std::vector<std::string> arguments,
                    const std::map<std::string, std::string>& given = {}) {
  std::vector<Command> commands;
  commands.push_back(batch_command([](const std::string&, const EngineFlags&, const OpenFor&) {
    return Result<ServedModel>(Status(Code::kIoError, "no model here"));
  }));
  arguments.insert(arguments.begin(), {"spillway", "batch"});
  std::vector<const char*> words;
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  test::Captured captured;
  run_command_line(commands, static_cast<int>(words.size()), words.data(),
                   [&](const char* name) -> const char* {
                     const auto found = given.find(name);
                     return found == given.end() ? nullptr : found->second.c_str();
                   });
  return captured.end();
}

TEST_CASE("flags of this machine and of a server do not go together") {
  const std::vector<std::string> good = {"--server", "http://127.0.0.1:1",
                                         "--input",  "/no/such/file",
                                         "--output", "/tmp/spillway-no-output"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), good.begin(), good.end());
    return refusal(std::move(more));
  };
  CHECK_THAT(with({}), Catch::Contains("/no/such/file"));
  CHECK_THAT(with({"--block", "7"}), Catch::Contains("--block is of a batch on this machine"));
  CHECK_THAT(with({"--resume"}), Catch::Contains("--batch-id"));
  CHECK_THAT(with({"model"}), Catch::Contains("MODEL"));
  CHECK_THAT(with({"--batch-id", "batch_1"}), Catch::Contains("--input"));
  CHECK_THAT(with({"--cancel"}), Catch::Contains("--batch-id"));
  CHECK_THAT(refusal({"--server", "https://a"}), Catch::Contains("TLS"));
  CHECK_THAT(refusal({"--server", "http://a", "--batch-id", "../x"}), Catch::Contains("no id"));
  CHECK_THAT(refusal({"--server", "http://a", "--input", "x"}), Catch::Contains("--output"));
  CHECK_THAT(refusal({"m", "--input", "x", "--output", "y", "--batch-id", "b"}),
             Catch::Contains("--server URL"));
  // What is set for other commands is no contradiction.
  std::vector<std::string> words = good;
  CHECK_THAT(refusal(words, {{"SPILLWAY_BLOCK", "7"}, {"SPILLWAY_API_KEY", "a,b"}}),
             Catch::Contains("/no/such/file"));
  CHECK_THAT(
      refusal({"m", "--input", "/no/such/file", "--output", "y"}, {{"SPILLWAY_API_KEY", ""}}),
      Catch::Contains("/no/such/file"));
}

}  // namespace
}  // namespace spillway::remote_batch_test
