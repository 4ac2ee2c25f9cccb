// `spillway batch` and whose fault an error is: the machine's costs no row its result, a row's own
// is its result.
#include <catch2/catch.hpp>

#include "server/cli/flags/command_line.h"
#include "server/log.h"
#include "tests/server/cli/batch/batch_fixture.h"
#include "tests/support/captured_stderr.h"

namespace spillway::batch_test::batch_faults_test {
namespace {

using test::Captured;

int status_of(const nlohmann::json& row) {
  return row["response"]["status_code"];
}

// A line whose prompt begins with `token`.
std::string line_with(int32_t token, int max_tokens = 3) {
  return "{\"prompt\":[" + std::to_string(token) +
         "],\"max_tokens\":" + std::to_string(max_tokens) + "}\n";
}

TEST_CASE("a fault of the machine that heals costs no row its result") {
  const Code code = GENERATE(Code::kIoError, Code::kCorruption, Code::kCapacity);
  Place place;
  place.write_input(mixed_input(300));
  const auto whole = place.whole();
  set_log(LogFormat::kText, LogLevel::kInfo);  // What others have written does not count.
  Captured log;
  MadeUpScheduler scheduler(64, std::chrono::microseconds(100), 16);
  int sweeps = 0;
  scheduler.sweep_status = [&](const auto&) {
    const bool glitch = ++sweeps > 20 && sweeps <= 26;
    return glitch ? Status(code, "model.spill: " + std::string(code_name(code))) : Status();
  };
  REQUIRE(place.run(&scheduler).ok());
  CHECK(place.rows() == whole);
  CHECK_FALSE(std::filesystem::exists(place.journal()));
  CHECK_THAT(log.end(), Catch::Contains("[error] The engine failed: model.spill: ") &&
                            Catch::Contains("run again in"));
}

TEST_CASE("a fault of the machine that lasts stops the run with its cause, to be resumed") {
  const Code code = GENERATE(Code::kIoError, Code::kCorruption, Code::kCapacity);
  Place place;
  place.write_input(mixed_input(300));
  const auto whole = place.whole();
  {
    Captured log;
    MadeUpScheduler scheduler(64, std::chrono::microseconds(100), 16);
    int sweeps = 0;
    scheduler.sweep_status = [&](const auto&) {
      return ++sweeps > 40 ? Status(code, "layer 3 of model.spill: slab 17") : Status();
    };
    const Status status = place.run(&scheduler);
    CHECK(status.code() == code);
    CHECK(exit_status_of(status) == 1);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("layer 3 of model.spill: slab 17") && Catch::Contains("--resume"));
  }
  CHECK_FALSE(std::filesystem::exists(place.flags.output));
  const JournalCounts counts = Journal::inspect(place.journal()).value();
  CHECK(counts.finished > 0);
  CHECK(counts.finished < 300);
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a request for which there is no room now is tried again") {
  Place place;
  place.write_input(mixed_input(40));
  const auto whole = place.whole();
  Captured log;
  MadeUpScheduler scheduler;
  scheduler.refusals = 3;
  REQUIRE(place.run(&scheduler).ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("a row that fails every sweep it is in keeps no other from its result") {
  constexpr int32_t kHungry = 77;
  Place place;
  place.write_input(plain_input(70) + line_with(kHungry) + plain_input(70, 70));
  std::vector<nlohmann::json> whole = place.whole();
  const auto has_it = [](const std::vector<const Request*>& block) {
    return std::any_of(block.begin(), block.end(),
                       [](const Request* request) { return request->prompt[0] == kHungry; });
  };
  {
    Captured log;
    MadeUpScheduler scheduler(64, std::chrono::microseconds(100), 16);
    scheduler.sweep_status = [&](const auto& block) {
      return has_it(block) ? Status(Code::kCapacity, "no memory for its scores") : Status();
    };
    const Status status = place.run(&scheduler);
    CHECK(status.code() == Code::kCapacity);
    CHECK_THAT(std::string(status.message()), Catch::Contains("no memory for its scores"));
  }
  CHECK(Journal::inspect(place.journal()).value().finished == 140);
  place.flags.resume = true;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

TEST_CASE("numbers that are not finite are a row's own result, which says why") {
  Place place;
  place.write_input(line_with(5) + line_with(MadeUpScheduler::kUnfit) + line_with(6));
  REQUIRE(place.run().ok());
  CHECK(place.failed == 1);
  const auto rows = place.rows();
  CHECK(status_of(rows.at(0)) == 200);
  CHECK(status_of(rows.at(1)) == 500);
  CHECK(status_of(rows.at(2)) == 200);
  CHECK(rows[1]["error"]["message"] ==
        "The engine failed while it ran this request: the logit of token 5 is NaN");
}

TEST_CASE("lines that failed run again when that is asked for, and no others") {
  Place place;
  const std::string unfit = line_with(MadeUpScheduler::kUnfit);
  place.write_input(plain_input(30) + unfit + plain_input(30, 30) + unfit + "not json\n");
  MadeUpScheduler healed;
  healed.unfit_fails = false;
  REQUIRE(place.run(&healed).ok());
  const auto whole = place.rows();
  std::filesystem::remove(place.flags.output);
  const bool finished = GENERATE(true, false);
  MadeUpScheduler first;
  if (!finished) first.interrupt_after_tokens = 150;
  CHECK(place.run(&first).ok() == finished);
  place.flags.retry_errors = true;
  MadeUpScheduler second;
  second.unfit_fails = false;
  REQUIRE(place.run(&second).ok());
  CHECK(place.rows() == whole);
  CHECK(place.failed == 1);  // What is not JSON stays so.
  if (finished) {
    CHECK(second.submitted == 2);
  } else {
    CHECK(second.submitted < 62);
  }
}

TEST_CASE("the output of another run is not retried") {
  Place place;
  place.write_input(line_with(MadeUpScheduler::kUnfit) + line_with(5));
  REQUIRE(place.run().ok());
  const std::string before = place.read_output();
  place.flags.retry_errors = true;
  place.setup.settings = {{"seed", "8"}};
  const Status status = place.run();
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(place.read_output() == before);
  CHECK_FALSE(std::filesystem::exists(place.journal()));
}

TEST_CASE("the flag max-errors stops a run that goes wrong, and what is done stays") {
  Place place;
  std::string text;
  for (int i = 0; i < 200; ++i) text += i % 2 == 0 ? line_with(100 + i) : "oops\n";
  place.write_input(text);
  const auto whole = place.whole();
  place.flags.max_errors = 7;
  const Status status = place.run();
  CHECK(exit_status_of(status) == 1);
  CHECK_THAT(std::string(status.message()), Catch::Contains("--max-errors is 7"));
  CHECK(Journal::inspect(place.journal()).value().failed == 8);
  place.flags.resume = true;
  place.flags.max_errors = 100;
  REQUIRE(place.run().ok());
  CHECK(place.rows() == whole);
}

// The exit status of the command line with these flags.
int exit_of(Place& place, MadeUpScheduler& scheduler, std::vector<const char*> flags) {
  const OpenModel open = [&](const std::string&, const EngineFlags&,
                             const OpenFor&) -> Result<ServedModel> {
    ServedModel model;
    model.context.shape = &scheduler.shape();
    model.context.model_names = {"tiny"};
    model.scheduler = &scheduler;
    model.identity = place.identity();
    return model;
  };
  std::vector<const char*> words = {"spillway",
                                    "batch",
                                    "tiny",
                                    "--input",
                                    place.flags.input.c_str(),
                                    "--output",
                                    place.flags.output.c_str()};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<Command> commands;
  commands.push_back(batch_command(open));
  Captured quiet;
  return run_command_line(commands, static_cast<int>(words.size()), words.data(),
                          [](const char*) { return nullptr; });
}

TEST_CASE("failed lines are no failure of the run, unless that is asked for") {
  Place place;
  place.write_input(line_with(5) + "oops\n");
  MadeUpScheduler scheduler;
  CHECK(exit_of(place, scheduler, {}) == 0);
  CHECK(exit_of(place, scheduler, {"--overwrite", "--fail-on-errors"}) == 1);
  CHECK(place.rows().size() == 2);
  CHECK(exit_of(place, scheduler, {"--resume", "--fail-on-errors"}) == 1);  // Nothing to resume
  place.write_input(line_with(5));
  CHECK(exit_of(place, scheduler, {"--overwrite", "--fail-on-errors"}) == 0);
}

}  // namespace
}  // namespace spillway::batch_test::batch_faults_test
