// Settings and command line: precedence, refusals, and what is printed.
#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/command_line.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/flags/hints.h"
#include "tests/support/captured_stderr.h"

namespace spillway::command_line_test {
namespace {

struct Call {
  int exit = 0;
  bool ran = false;
  EngineFlags flags;
  std::string model;
  std::string prompt;
  std::vector<std::string> names;
};

using Environment = std::map<std::string, std::string>;

// Runs `spillway run ARGUMENTS` with a command that only keeps what it was given.
Call run(std::vector<const char*> arguments, const Environment& environment = {}) {
  Call call;
  std::vector<Command> commands(2);
  commands[0].name = "run";
  commands[0].arguments = {{"MODEL", "a model", &call.model}};
  commands[0].settings.group("Run");
  commands[0].settings.add_text("prompt", &call.prompt, "TEXT", "a prompt");
  commands[0].settings.add_texts("name", &call.names, "NAME", "a name");
  add_engine_flags(commands[0].settings, &call.flags);
  commands[0].check = [&] { return validate(call.flags); };
  commands[0].run = [&] {
    call.ran = true;
    return 7;
  };
  int64_t port = 8000;
  commands[1].name = "serve";
  commands[1].settings.add_integer("port", &port, 0, 65535, "a port");
  commands[1].run = [] { return 0; };
  arguments.insert(arguments.begin(), {"spillway", "run"});
  call.exit =
      run_command_line(commands, static_cast<int>(arguments.size()), arguments.data(),
                       [&](const char* name) -> const char* {
                         const auto found = environment.find(name);
                         return found == environment.end() ? nullptr : found->second.c_str();
                       });
  return call;
}

std::string config_file(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("spillway-config-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << text;
  return path.string();
}

TEST_CASE("flags reach their fields") {
  const Call call = run({"a/model",
                         "--host-memory",
                         "8GiB",
                         "--weights",
                         "20,80,0",
                         "--block=144",
                         "--micro-batch",
                         "48",
                         "--format",
                         "q4",
                         "--kv-rule",
                         "h2o",
                         "--kv-heavy",
                         "0.1",
                         "--kv-recent",
                         "64",
                         "--draft",
                         "ngram",
                         "--draft-tokens",
                         "6",
                         "--no-overlap",
                         "--seed",
                         "18446744073709551615",
                         "--prompt",
                         "[-x, --y]",
                         "--name",
                         "a",
                         "--name",
                         "b,c"});
  CHECK(call.exit == 7);
  CHECK(call.model == "a/model");
  CHECK(call.flags.host_memory_bytes == uint64_t{8} << 30);
  CHECK(call.flags.weights == TierPercent{20, 80, 0});
  CHECK(call.flags.block == 144);
  CHECK(call.flags.micro_batch == 48);
  CHECK(call.flags.format == Format::kQ4);
  CHECK(call.flags.kv_heavy == KvAmount{0, 0.1});
  CHECK(call.flags.kv_recent == KvAmount{64, 0});
  CHECK(call.flags.draft == "ngram");
  CHECK(call.flags.draft_tokens == 6);
  CHECK(call.flags.no_overlap);
  CHECK(call.flags.seed == UINT64_MAX);
  CHECK(call.prompt == "[-x, --y]");
  CHECK(call.names == std::vector<std::string>{"a", "b", "c"});
  CHECK_FALSE(call.flags.kv.has_value());
}

TEST_CASE("a flag beats the environment, which beats the file, which beats the default") {
  const std::string file = config_file(
      R"({"threads": 2, "block": 3, "micro-batch": 1, "weights": [50, 50, 0], "port": 1,
          "no-overlap": true, "device": null})");
  const Environment environment = {{"SPILLWAY_THREADS", "5"},
                                   {"SPILLWAY_BLOCK", "6"},
                                   {"SPILLWAY_NO_OVERLAP", "off"},
                                   {"SPILLWAY_DEVICE", ""}};
  const Call call = run({"m", "--config", file.c_str(), "--threads", "9"}, environment);
  REQUIRE(call.exit == 7);
  CHECK(call.flags.threads == 9);
  CHECK(call.flags.block == 6);
  CHECK(call.flags.micro_batch == 1);
  CHECK(call.flags.weights == TierPercent{50, 50, 0});
  CHECK_FALSE(call.flags.no_overlap);
  CHECK(call.flags.device == "auto");
  CHECK(run({"m"}, {{"SPILLWAY_CONFIG", file}}).flags.threads == 2);
  std::filesystem::remove(file);
}

TEST_CASE("folders of scratch files come from one list, or one flag each") {
  using Folders = std::vector<std::string>;
  CHECK(run({"m"}).flags.disk_dirs.empty());
  CHECK(run({"m", "--disk-dir", "/a"}).flags.disk_dirs == Folders{"/a"});
  CHECK(run({"m", "--disk-dir", "/a,/b"}).flags.disk_dirs == Folders{"/a", "/b"});
  CHECK(run({"m", "--disk-dir", "/a\\,b", "--disk-dir=/c"}).flags.disk_dirs ==
        Folders{"/a,b", "/c"});
  CHECK(run({"m", "--disk-dir", ""}).flags.disk_dirs.empty());
  CHECK(run({"m"}, {{"SPILLWAY_DISK_DIR", "/a,/b"}}).flags.disk_dirs == Folders{"/a", "/b"});
  for (const char* wrong : {"/a,,/b", "/a,", "/a,/a"}) {
    test::Captured log;
    CHECK(run({"m", "--disk-dir", wrong}).exit == 2);
    CHECK_THAT(log.end(), Catch::Contains("--disk-dir"));
  }
}

TEST_CASE("bad usage is exit status 2 and runs nothing") {
  const std::vector<std::vector<const char*>> bad = {
      {},
      {"m", "extra"},
      {"m", "--blok", "3"},
      {"m", "--block"},
      {"m", "--block", "0"},
      {"m", "--block", "-1"},
      {"m", "--block", "3x"},
      {"m", "--block", "99999999999999999999"},
      {"m", "--threads", "1.5"},
      {"m", "--weights", "20,80"},
      {"m", "--weights", "20,80,1"},
      {"m", "--weights", "-20,120,0"},
      {"m", "--weights", "20,80,0,"},
      {"m", "--host-memory", "lots"},
      {"m", "--kv-rule", "h3o"},
      {"m", "--kv-rule", "h2o", "--kv-heavy", "1.0"},
      {"m", "--kv-heavy", "4"},
      {"m", "--kv-sink", "4"},
      {"m", "--kv-keep", "4"},
      {"m", "--kv-snap", "max"},
      {"m", "--draft", "model"},
      {"m", "--draft-tokens", "4"},
      {"m", "--draft", "ngram", "--draft-tokens", "0"},
      {"m", "--draft", "ngram", "--draft-tokens", "17"},
      {"m", "--kv-rule", "snap", "--kv-snap", "median"},
      {"m", "--kv-rule", "window", "--kv-snap", "max"},
      {"m", "--kv-rule", "h2o", "--kv-sink", "4"},
      {"m", "--kv-rule", "h2o", "--kv-keep", "all"},
      {"m", "--kv-rule", "h2o", "--kv-keep", "1.0"},
      {"m", "--kv-rule", "window", "--kv-keep", "4", "--kv-sink", "5"},
      {"m", "--kv-ratio-of", "prompt"},
      {"m", "--format", "i32"},
      {"m", "--block", "4", "--micro-batch", "5"},
      {"m", "--prefill-tokens", "100", "--prefill-target", "101"},
      {"m", "--no-overlap=maybe"},
      {"m", "--weights-from", "cloud"},
      {"m", "--weights-from", "checkpoint", "--dummy-weights"},
      {"m", "--weights-from", "checkpoint", "--verify", "sample"},
      {"m", "--config", "/no/such/file"},
  };
  for (const auto& arguments : bad) {
    std::string line;
    for (const char* word : arguments) line += std::string(word) + " ";
    INFO(line);
    const Call call = run(arguments);
    CHECK(call.exit == 2);
    CHECK_FALSE(call.ran);
  }
  CHECK(run({"m"}, {{"SPILLWAY_BLOCK", "none"}}).exit == 2);
  for (const char* text : {"[]", "{\"blok\": 1}", "{\"block\": {}}", "{\"block\": [1, [2]]}",
                           "{\"block\": \"x\"}", "{"}) {
    INFO(text);
    const std::string file = config_file(text);
    CHECK(run({"m", "--config", file.c_str()}).exit == 2);
    std::filesystem::remove(file);
  }
}

TEST_CASE("amounts belong to the KV rule that their source saw") {
  const std::string file = config_file(
      R"({"kv-rule": "h2o", "kv-heavy": 0.3, "kv-recent": 0.1, "kv-ratio-of": "prompt"})");
  const Call other = run({"m", "--config", file.c_str(), "--kv-rule", "window"});
  CHECK(other.exit == 7);
  CHECK_FALSE(other.flags.kv_heavy);
  CHECK_FALSE(other.flags.kv_recent);
  CHECK(other.flags.kv_ratio_of == "total");
  const Call same = run({"m", "--config", file.c_str(), "--kv-rule", "h2o"});
  CHECK(same.flags.kv_heavy == KvAmount{0, 0.3});
  // A variable that names no rule speaks of the file's; a rule beside it is another one.
  const Call variable = run({"m", "--config", file.c_str()}, {{"SPILLWAY_KV_HEAVY", "5"}});
  CHECK(variable.flags.kv_heavy == KvAmount{5, 0});
  const Call both = run({"m", "--config", file.c_str(), "--kv-rule", "full"},
                        {{"SPILLWAY_KV_HEAVY", "5"}, {"SPILLWAY_KV_RULE", "h2o"}});
  CHECK(both.exit == 7);
  CHECK_FALSE(both.flags.kv_heavy);
  std::filesystem::remove(file);
  // Amounts without a rule anywhere wait for one.
  const std::string amounts = config_file(R"({"kv-heavy": 0.05})");
  const Call waited = run({"m", "--config", amounts.c_str(), "--kv-rule", "h2o"});
  CHECK(waited.flags.kv_heavy == KvAmount{0, 0.05});
  std::filesystem::remove(amounts);
}

TEST_CASE("protected positions have two names, of which the stronger source's holds") {
  CHECK(run({"m", "--kv-rule", "h2o", "--kv-keep", "prompt"}).flags.kv_keep ==
        KvKeep::whole_prompt());
  CHECK(run({"m", "--kv-rule", "window", "--kv-keep", "0.1"}).flags.kv_keep == KvKeep({0, 0.1}));
  const Call equal = run({"m", "--kv-rule", "window", "--kv-keep", "4", "--kv-sink", "4"});
  CHECK(equal.exit == 7);
  CHECK(kv_rule_of(equal.flags).keep == KvKeep(4));
  const std::string file = config_file(R"({"kv-rule": "window", "kv-sink": 4})");
  const Call newer = run({"m", "--config", file.c_str(), "--kv-keep", "prompt"});
  CHECK(newer.exit == 7);
  CHECK(kv_rule_of(newer.flags).keep == KvKeep::whole_prompt());
  const Call older =
      run({"m", "--config", file.c_str(), "--kv-sink", "5"}, {{"SPILLWAY_KV_KEEP", "0.5"}});
  CHECK(older.exit == 7);
  CHECK(kv_rule_of(older.flags).keep == KvKeep(5));
  std::filesystem::remove(file);
}

TEST_CASE("the flag print-config and --help do nothing else") {
  CHECK(run({"--print-config"}).exit == 0);
  CHECK(run({"--print-config", "--block", "x"}).exit == 2);
  CHECK_FALSE(run({"m", "--print-config"}).ran);
  CHECK(run({"--help"}).exit == 0);
  CHECK_FALSE(run({"m", "--help"}).ran);
}

TEST_CASE("the configuration names each value's source") {
  int64_t block = 4;
  bool fast = false;
  std::string text;
  Settings settings;
  settings.add_integer("block", &block, 1, 9, "help");
  settings.add_switch("fast", &fast, "help");
  settings.add_text("disk-dir", &text, "DIR", "help");
  SettingInputs inputs;
  inputs.flags = {{"fast", "true"}};
  inputs.environment = [](const char* name) {
    return std::string(name) == "SPILLWAY_DISK_DIR" ? "/tmp" : nullptr;
  };
  REQUIRE(resolve(settings, inputs).ok());
  CHECK(describe(settings) ==
        "block     4     default\n"
        "fast      true  --fast\n"
        "disk-dir  /tmp  SPILLWAY_DISK_DIR\n");
}

TEST_CASE("a key that occurs twice in a configuration file is refused by its name") {
  SettingInputs inputs;
  int64_t block = 0;
  Settings settings;
  settings.add_integer("block", &block, 0, 100, "");
  inputs.config_file = config_file(R"({"block": 1, /* again */ "block": 5})");
  const Status status = resolve(settings, inputs);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(std::string(status.message()).find("'block' occurs twice") != std::string::npos);
  inputs.config_file = config_file(R"({"block": 5} // once)");
  CHECK(resolve(settings, inputs).ok());
  CHECK(block == 5);
  std::filesystem::remove(inputs.config_file);
}

TEST_CASE("a word that is nearly right is recognised") {
  CHECK(nearest("--blok", {"--block", "--input"}) == "--block");
  CHECK(nearest("bench", {"batch", "bench"}) == "bench");
  CHECK(nearest("--zzz", {"--block", "--input"}).empty());
  CHECK(nearest("", {"a"}).empty());
}

TEST_CASE("variables of the environment that set nothing are found") {
  int64_t port = 0, length = 0;
  std::vector<Command> commands(1);
  commands[0].settings.add_integer("port", &port, 0, 65535, "");
  commands[0].settings.add_integer("max-model-len", &length, 0, 65535, "");
  const char* const environment[] = {"SPILLWAY_PROT=9",
                                     "SPILLWAY_PORT=8",
                                     "SPILLWAY_CONFIG=x",
                                     "SPILLWAY_SOMETHING_ELSE=1",
                                     "SPILLWAY_MAX_MODEL_LENGTH=1",
                                     "SPILLWAY_MAX_NUM_SEQS=1",
                                     "SPILLWAY_SERVICE_HOST=10.0.0.1",
                                     "SPILLWAY_SERVICE_PORT_HTTP=80",
                                     "SPILLWAY_PORT_8000_TCP=tcp://10.0.0.1:8000",
                                     "SPILLWAY_PORT_8000_TCP_ADDR=10.0.0.1",
                                     "PROT=1",
                                     "SPILLWAY_CACHE",
                                     "SPILLWAY_SANITIZER_FLAGS=-g0",
                                     "SPILLWAY_PTXAS_VERBOSE=ON",
                                     "SPILLWAY_SHARED=/data",
                                     nullptr};
  CHECK(unknown_variables(commands, environment) ==
        std::vector<std::string>{
            "SPILLWAY_PROT sets nothing; did you mean SPILLWAY_PORT?",
            "SPILLWAY_SOMETHING_ELSE sets nothing; no flag of any command has that name",
            "SPILLWAY_MAX_MODEL_LENGTH sets nothing; did you mean SPILLWAY_MAX_MODEL_LEN?",
            "SPILLWAY_MAX_NUM_SEQS sets nothing; use --block N (sequences at once)"});
}

TEST_CASE("the port that Kubernetes sets for a Service of our name is none") {
  int64_t port = 8000;
  Settings settings;
  settings.add_integer("port", &port, 0, 65535, "");
  SettingInputs inputs;
  std::string value = "tcp://10.0.0.1:8000";
  inputs.environment = [&](const char*) { return value.c_str(); };
  CHECK(resolve(settings, inputs).ok());
  CHECK(port == 8000);
  value = "udp";
  CHECK_FALSE(resolve(settings, inputs).ok());
}

TEST_CASE("every unknown flag of a line is explained at once") {
  test::Captured log;
  CHECK(run({"m", "--dtype", "bfloat16", "--blok=3", "--dtype", "x", "-ngl", "99"}).exit == 2);
  const std::string text = log.end();
  CHECK(text.find("no flag --dtype here; use --format") != std::string::npos);
  CHECK(text.find("\n  no flag --blok; did you mean --block?") != std::string::npos);
  CHECK(text.find("\n  no flag -ngl here; use --weights") != std::string::npos);
  CHECK(text.find("--dtype") == text.rfind("--dtype"));
}

TEST_CASE("a word too many behind a flag of several values tells how these are given") {
  test::Captured list;
  CHECK(run({"--name", "a", "b", "m"}).exit == 2);
  const std::string text = list.end();
  CHECK(text.find("one word too many: 'm'; several values of a flag (--name) have commas") !=
        std::string::npos);
  test::Captured other;
  CHECK(run({"m", "--prompt", "a", "b"}).exit == 2);
  CHECK(other.end().find("one word too many: 'b'\n") != std::string::npos);
}

TEST_CASE("help says how several values are given") {
  std::vector<std::string> names;
  std::string prompt;
  Command command;
  command.name = "run";
  command.settings.add_texts("name", &names, "NAME", "a name");
  command.settings.add_text("prompt", &prompt, "TEXT", "a prompt");
  const std::string help = command_help(command);
  CHECK(help.find("a name; several: with commas between, or the flag again\n") !=
        std::string::npos);
  CHECK(help.find("a prompt\n") != std::string::npos);
}

TEST_CASE("help lines stay within the terminal") {
  EngineFlags flags;
  Command command;
  command.name = "run";
  command.description = std::string(40, 'x') + " " + std::string(60, 'y');
  add_engine_flags(command.settings, &flags);
  const std::string help = command_help(command);
  size_t start = 0;
  while (start < help.size()) {
    const size_t end = help.find('\n', start);
    INFO(help.substr(start, end - start));
    CHECK(end - start <= 96);
    start = end + 1;
  }
  for (const Setting& setting : command.settings.all()) {
    CHECK(help.find("--" + setting.name) != std::string::npos);
  }
}

TEST_CASE("statuses map to exit statuses") {
  CHECK(exit_status_of({}) == 0);
  CHECK(exit_status_of(invalid_argument("x")) == 2);
  CHECK(exit_status_of(not_found("x")) == 2);
  CHECK(exit_status_of({Code::kInfeasible, "x"}) == 3);
  CHECK(exit_status_of({Code::kCancelled, "x"}) == 130);
  CHECK(exit_status_of(corruption("x")) == 1);
}

}  // namespace
}  // namespace spillway::command_line_test
