// The flags of `spillway queue`. What it does with a database: tests/services/queue_test.py.
#include "server/cli/queue/queue.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/captured_stderr.h"

namespace spillway::queue_test {
namespace {

QueueFlags flags_of(const std::string& action) {
  QueueFlags flags;
  flags.action = action;
  flags.database = "postgresql:///x";
  flags.job = 3;
  flags.input = "in.jsonl";
  flags.output = "out.jsonl";
  flags.model = "m";
  return flags;
}

std::string refusal(const QueueFlags& flags) {
  const Status status = validate(flags);
  CHECK((status.ok() || status.code() == Code::kInvalidArgument));
  return std::string(status.message());
}

TEST_CASE("every action of the queue says what it lacks") {
  for (const char* action :
       {"submit", "status", "list", "fetch", "cancel", "retry", "delete", "workers", "init"}) {
    CHECK(refusal(flags_of(action)).empty());
    QueueFlags flags = flags_of(action);
    flags.database = "";
    CHECK_THAT(refusal(flags), Catch::Contains("--database is missing"));
  }
  CHECK_THAT(refusal(flags_of("dance")), Catch::Contains("'dance' is none of submit, status"));
  const auto without = [](const std::string& action, auto field, auto value) {
    QueueFlags flags = flags_of(action);
    flags.*field = value;
    return refusal(flags);
  };
  CHECK_THAT(without("submit", &QueueFlags::input, ""), Catch::Contains("--input is missing"));
  CHECK_THAT(without("submit", &QueueFlags::model, ""), Catch::Contains("--model is missing"));
  CHECK_THAT(without("fetch", &QueueFlags::output, ""), Catch::Contains("--output is missing"));
  for (const char* action : {"status", "fetch", "cancel", "retry", "delete"}) {
    CHECK_THAT(without(action, &QueueFlags::job, std::optional<int64_t>()),
               Catch::Contains("--job is missing"));
  }
}

int run(const std::vector<const char*>& words) {
  std::vector<Command> commands;
  commands.push_back(queue_command());
  std::vector<const char*> line = {"spillway", "queue"};
  line.insert(line.end(), words.begin(), words.end());
  return run_command_line(commands, static_cast<int>(line.size()), line.data(),
                          [](const char*) { return nullptr; });
}

TEST_CASE("values of the queue's flags are checked, and the database's is never shown") {
  const char* const kDatabase = "--database=postgresql://u:topsecret@nowhere.invalid/x";
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {"status", kDatabase, "--job", "0"},
           {"status", kDatabase, "--job", "3x"},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--format", "q5"},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--format", "q4 and "},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--kv-format", "q4_1"},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--kv-rule", "h20"},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--deadline", "soon"},
           {"submit", kDatabase, "--input", "x", "--model", "m", "--attempts", "1"},
           {"status", kDatabase}}) {
    test::Captured captured;
    const int status = run(words);
    const std::string text = captured.end();
    INFO(text);
    CHECK(status == kExitUsage);
    CHECK_THAT(text, !Catch::Contains("topsecret"));
    CHECK_THAT(text, Catch::Contains("spillway queue: "));
  }
}

TEST_CASE("a password on the command line is warned of, and one that is not there is not") {
  const auto warning = [](const char* url) {
    std::string field;
    return database_setting(&field).exposure(url);
  };
  for (const char* url :
       {"postgresql://u:p@h/x", "postgresql://h/x?password=p", "host=h password=p"}) {
    CHECK_THAT(warning(url), Catch::Contains("SPILLWAY_DATABASE"));
  }
  for (const char* url :
       {"postgresql://u@h:5432/x", "host=h user=u", "postgresql:///x?host=/run"}) {
    CHECK(warning(url).empty());
  }
}

}  // namespace
}  // namespace spillway::queue_test
