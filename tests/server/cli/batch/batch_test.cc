// `spillway batch` on a made-up scheduler: lines, order, refusals, interrupts, broken engines.
#include <catch2/catch.hpp>

#include "server/batches/batch_input.h"
#include "server/batches/batch_line.h"
#include "server/batches/batch_progress.h"
#include "tests/server/cli/batch/batch_fixture.h"

namespace spillway::batch_test::all_test {
namespace {

int status_of(const nlohmann::json& row) {
  return row["response"]["status_code"];
}

std::string code_of(const nlohmann::json& row) {
  return row["error"]["code"];
}

TEST_CASE("every line has its row, in order, good or bad") {
  Place place;
  place.write_input(
      "\xEF\xBB\xBF{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
      "\"body\":{\"prompt\":[1,2],\"max_tokens\":3,\"return_token_ids\":true,\"seed\":5}}\r\n"
      "{\"prompt\":[1,2],\"max_tokens\":3,\"return_token_ids\":true,\"seed\":5}\n"
      "\n \t\r\n"
      "{\"prompt\":[1,2],\"max_tokens\":0}\n"
      "not json\n"
      "[1]\n"
      "{\"prompt\":[1000],\"max_tokens\":3}\n"
      "{\"custom_id\":\"a\",\"body\":{\"prompt\":[1]}}\n"
      "{\"custom_id\":\"b\",\"method\":\"GET\",\"body\":{\"prompt\":[1]}}\n"
      "{\"custom_id\":\"c\",\"url\":\"/v1/embeddings\",\"body\":{\"prompt\":[1]}}\n"
      "{\"custom_id\":\"d\",\"method\":\"POST\"}\n"
      "{\"prompt\":[1],\"stream\":true}\n"
      "{\"prompt\":[1],\"timeout\":5}\n"
      "{\"prompt\":\"text without a tokenizer\"}\n"
      "{\"custom_id\":\"e\",\"prompt\":[3],\"max_tokens\":1}");
  REQUIRE(place.run().ok());
  const auto rows = place.rows();
  REQUIRE(rows.size() == 14);
  const std::vector<int> wanted = {200, 200, 200, 400, 400, 400, 400,
                                   400, 400, 400, 400, 400, 400, 200};
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i << ": " << rows[i].dump());
    CHECK(status_of(rows[i]) == wanted[i]);
    CHECK(rows[i]["error"].is_null() == (wanted[i] == 200));
    CHECK(rows[i]["response"]["body"].contains("error") == (wanted[i] != 200));
  }
  CHECK(rows[0]["custom_id"] == "a");
  CHECK(rows[1]["custom_id"].is_null());
  CHECK(code_of(rows[3]) == "invalid_json");
  CHECK(std::string(rows[3]["error"]["message"]).find("The line is not valid JSON") == 0);
  CHECK(rows[4]["error"]["message"] == "The line must be a JSON object.");
  CHECK(code_of(rows[6]) == "duplicate_custom_id");
  CHECK(rows[6]["custom_id"] == "a");
  CHECK(rows[11]["response"]["body"]["error"]["param"] == "timeout");
  CHECK(rows[13]["custom_id"] == "e");
  const auto& choice = rows[0]["response"]["body"]["choices"][0];
  CHECK(choice["token_ids"].size() == 3);
  CHECK(choice["prompt_token_ids"] == nlohmann::json({1, 2}));
  CHECK(rows[1]["response"]["body"]["choices"][0]["token_ids"] == choice["token_ids"]);
  CHECK(rows[0]["id"] != rows[1]["id"]);
  CHECK_FALSE(std::filesystem::exists(place.journal()));
}

TEST_CASE("a line may have 1 MiB and not a byte more; NUL bytes are an error of the line") {
  Place place;
  std::string body = "{\"prompt\":[1],\"max_tokens\":1,\"user\":\"";
  body += std::string(kBatchLineBytesMax - body.size() - 2, 'u') + "\"}";
  REQUIRE(body.size() == kBatchLineBytesMax);
  std::string longer = body;
  longer.insert(longer.size() - 2, "u");
  place.write_input(body + "\r\n" + longer + "\n" + body +
                    std::string("\n{\"prompt\":[1]\0}\n", 17) + std::string(3 << 20, 'x') +
                    "\n{\"prompt\":[1],\"max_tokens\":1}\n");
  REQUIRE(place.run().ok());
  const auto rows = place.rows();
  REQUIRE(rows.size() == 6);
  CHECK(status_of(rows[0]) == 200);
  CHECK(code_of(rows[1]) == "line_too_long");
  CHECK(status_of(rows[2]) == 200);
  CHECK(code_of(rows[3]) == "invalid_json");
  CHECK(code_of(rows[4]) == "line_too_long");
  CHECK(status_of(rows[5]) == 200);
}

TEST_CASE("an empty input gives an empty output") {
  Place place;
  place.write_input("\n\n");
  REQUIRE(place.run().ok());
  CHECK(std::filesystem::exists(place.flags.output));
  CHECK(place.read_output().empty());
}

TEST_CASE("results do not depend on how much is in flight") {
  Place place;
  place.write_input(mixed_input(150));
  place.flags.overwrite = true;
  // Slow enough to fill up, however slow the machine is
  int64_t most = 0;
  for (int64_t pause = 10; pause <= 1000 && most <= 32; pause *= 10) {
    MadeUpScheduler wide(64, std::chrono::milliseconds(pause));
    REQUIRE(place.run(&wide).ok());
    most = wide.most_in_flight;
  }
  CHECK(most > 32);
  const auto rows = place.rows();
  REQUIRE(rows.size() == 150);
  for (const int64_t queue_max : {2, 3, 8}) {
    MadeUpScheduler narrow(queue_max);
    REQUIRE(place.run(&narrow).ok());
    CHECK(narrow.most_in_flight <= queue_max);
    CHECK(place.rows() == rows);
  }
  CHECK(rows[1]["response"]["body"]["choices"].size() == 2);  // n = 2: their draws differ.
  CHECK(rows[6]["response"]["body"]["choices"][0]["token_ids"] !=
        rows[6]["response"]["body"]["choices"][1]["token_ids"]);
}

TEST_CASE("a row that needs more sequences than fit at once fails alone") {
  Place place;
  place.write_input(
      "{\"prompt\":[1],\"n\":5,\"max_tokens\":1}\n{\"prompt\":[1],\"max_tokens\":1}\n");
  MadeUpScheduler scheduler(4);
  REQUIRE(place.run(&scheduler).ok());
  CHECK(status_of(place.rows()[0]) == 400);
  CHECK(status_of(place.rows()[1]) == 200);
}

TEST_CASE("draws follow the seed of the run, unless a body names its own") {
  Place place;
  place.write_input(
      "{\"prompt\":[9],\"max_tokens\":4,\"return_token_ids\":true}\n"
      "{\"prompt\":[9],\"max_tokens\":4,\"return_token_ids\":true}\n"
      "{\"prompt\":[9],\"max_tokens\":4,\"return_token_ids\":true,\"seed\":3}\n");
  const auto tokens = [&](size_t row) {
    return place.rows()[row]["response"]["body"]["choices"][0]["token_ids"];
  };
  REQUIRE(place.run().ok());
  const nlohmann::json first = tokens(0), second = tokens(1), third = tokens(2);
  CHECK(first != second);
  place.flags.overwrite = true;
  place.setup.seed = 8;
  REQUIRE(place.run().ok());
  CHECK(tokens(0) != first);
  CHECK(tokens(2) == third);
}

TEST_CASE("the files are checked before anything runs") {
  Place place;
  CHECK(place.run().code() == Code::kNotFound);
  place.write_input("{\"prompt\":[1]}\n");
  const std::string output = place.flags.output;
  place.flags.output = place.flags.input;
  CHECK(place.run().code() == Code::kInvalidArgument);
  place.flags.output = "/no/such/directory/out";
  CHECK_FALSE(place.run().ok());
  place.flags.output = "/dev/null";
  CHECK(place.run().code() == Code::kInvalidArgument);
  place.flags.output = output;
  place.flags.input = "/dev/null";
  CHECK(place.run().code() == Code::kInvalidArgument);
}

TEST_CASE("an interrupted run says so, is not overwritten, and goes on") {
  Place place;
  place.write_input(mixed_input(120));
  REQUIRE(place.run().ok());
  const auto whole = place.rows();
  std::filesystem::remove(place.flags.output);

  MadeUpScheduler first(8);
  first.interrupt_after_tokens = 100;
  const Status status = place.run(&first);
  CHECK(status.code() == Code::kCancelled);
  CHECK(std::string(status.message()).find("--resume") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(place.flags.output));
  const int64_t done = Journal::inspect(place.journal()).value().finished;
  CHECK(done < 120);

  const Status refused = place.run();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(std::string(refused.message()).find(std::to_string(done) + " lines done") !=
        std::string::npos);

  place.flags.resume = true;
  MadeUpScheduler second;
  REQUIRE(place.run(&second).ok());
  CHECK(place.rows() == whole);
  MadeUpScheduler third;
  CHECK(place.run(&third).ok());  // Nothing is left to do, and nothing is done.
  CHECK(third.stats().generated_tokens == 0);
}

TEST_CASE("the flag resume refuses another input, model or setting, and names it") {
  Place place;
  place.write_input(mixed_input(40));
  MadeUpScheduler broken;
  broken.break_after_tokens = 20;
  CHECK(place.run(&broken).code() == Code::kDeviceLost);
  place.flags.resume = true;
  const auto refusal = [&] { return std::string(place.run().message()); };
  place.source = "tiny 2";
  CHECK(refusal().find("model was tiny 1 f32/f32, now tiny 2") != std::string::npos);
  place.source = "tiny 1";
  place.formats = "q4/f32";
  CHECK(refusal().find("model was tiny 1 f32/f32, now tiny 1 q4/f32") != std::string::npos);
  place.formats = "f32/f32";
  place.setup.settings = {{"seed", "9"}};
  CHECK(refusal().find("seed was 7, now 9") != std::string::npos);
  place.setup.settings = {{"seed", "7"}};
  place.write_input(mixed_input(41));
  CHECK(refusal().find("input was ") != std::string::npos);
  place.write_input(mixed_input(40));
  CHECK(place.run().ok());
}

TEST_CASE("a broken engine ends the run without blaming rows") {
  Place place;
  place.write_input(mixed_input(60));
  REQUIRE(place.run().ok());
  const auto whole = place.rows();
  std::filesystem::remove(place.flags.output);
  MadeUpScheduler broken;
  broken.break_after_tokens = 50;
  const Status status = place.run(&broken);
  CHECK(status.code() == Code::kDeviceLost);
  CHECK(exit_status_of(status) == 1);
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a dry run counts and runs nothing") {
  Place place;
  place.write_input(mixed_input(10));
  place.flags.dry_run = true;
  MadeUpScheduler scheduler;
  CHECK(place.run(&scheduler).ok());
  place.write_input(mixed_input(20));
  CHECK(place.run(&scheduler).code() == Code::kInvalidArgument);
  CHECK(scheduler.stats().generated_tokens == 0);
  CHECK_FALSE(std::filesystem::exists(place.flags.output));
  CHECK_FALSE(std::filesystem::exists(place.journal()));
}

TEST_CASE("parameters that mean nothing are told of, and those that look like ours refused") {
  IgnoredNames ignored;
  CHECK(ignored.text().empty());
  CompletionCall call;
  ignored.add(call);
  CHECK(ignored.text().empty());
  call.ignored = {"top_j", "foo"};
  ignored.add(call);
  CHECK(ignored.text() == "1 line has parameters that mean nothing here: foo, top_j");
  call.ignored = {"foo"};
  ignored.add(call);
  CHECK(ignored.text() == "2 lines have parameters that mean nothing here: foo, top_j");
  Place place;
  place.write_input("{\"prompt\":[1],\"foo\":1}\n{\"prompt\":[1],\"kv_rules\":\"h2o\"}\n");
  REQUIRE(place.run().ok());
  const auto rows = place.rows();
  CHECK(status_of(rows.at(0)) == 200);
  CHECK(status_of(rows.at(1)) == 400);
  CHECK(code_of(rows.at(1)) == "unknown_parameter");
}

TEST_CASE("progress is written for people and for programs") {
  BatchProgress progress;
  progress.lines_total = 1200;
  progress.lines_done = 600;
  progress.lines_before = 300;
  progress.lines_failed = 2;
  progress.generated_tokens = 12345;
  progress.generated_tokens_now = 5000;
  progress.seconds = 50;
  CHECK(progress_text(progress) ==
        "600/1,200 lines (50 %), 2 failed, 12,345 tokens, 100.0 tokens/s, 1 min 40 s left");
  const auto json = nlohmann::json::parse(progress_json(progress, "running"));
  CHECK(json["lines_done"] == 600);
  CHECK(json["seconds_left"] == 100);
  progress.lines_done = progress.lines_before;
  CHECK(nlohmann::json::parse(progress_json(progress, "running"))["seconds_left"].is_null());
}

TEST_CASE("rows whose answers are large run in smaller numbers, inside the memory for answers") {
  constexpr int64_t kQueue = 16;
  Place place;
  const auto input = [](int rows, int tokens) {
    std::string text;
    for (int i = 0; i < rows; ++i) {
      text += "{\"prompt\":[" + std::to_string(100 + i) +
              "],\"max_tokens\":" + std::to_string(tokens) + ",\"return_token_ids\":true}\n";
    }
    return text;
  };
  // A row may take 48 bytes a token and more for the rest.
  place.write_input(input(60, 400));
  place.flags.answers_bytes_max = 5 * 26'000;
  MadeUpScheduler scheduler(kQueue);
  REQUIRE(place.run(&scheduler).ok());
  CHECK(scheduler.most_in_flight >= 2);  // How many of five is a matter of the machine.
  CHECK(scheduler.most_in_flight <= 6);
  CHECK(place.failed == 0);
  const auto rows = place.rows();
  CHECK(rows.size() == 60);

  SECTION("the answers are those of a run with all the memory") {
    std::filesystem::remove(place.flags.output);
    place.flags.answers_bytes_max = BatchFlags().answers_bytes_max;
    MadeUpScheduler more(kQueue);
    REQUIRE(place.run(&more).ok());
    CHECK(more.most_in_flight > 6);
    CHECK(place.rows() == rows);
  }
  SECTION("a row that is too large for all of it gets an error that says how much") {
    place.flags.output += "2";
    place.write_input(input(3, 400) + input(1, 30));
    place.flags.answers_bytes_max = 20'000;
    REQUIRE(place.run().ok());
    CHECK(place.failed == 3);
    const auto mixed = place.rows();
    CHECK(mixed[3]["error"].is_null());
    CHECK(mixed[0]["error"]["code"] == "answer_too_large");
    CHECK_THAT(std::string(mixed[0]["error"]["message"]),
               Catch::Contains("--answers-bytes-max") && Catch::Contains("19.5 KiB"));
  }
}

}  // namespace
}  // namespace spillway::batch_test::all_test
