// --log-format and --log-level: what they take, and that the log does as it is told.
#include "server/cli/serve/log_flags.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "server/log.h"
#include "tests/support/captured_stderr.h"

namespace spillway::log_flags_test {
namespace {

struct Given {
  Given() { add_log_flags(settings, &flags); }
  ~Given() { set_log(LogFormat::kText, LogLevel::kInfo); }
  Status set(const char* name, const char* value) {
    return settings.set(name, value, SettingSource::kFlag, std::string("--") + name);
  }

  Settings settings;
  LogFlags flags;
};

TEST_CASE("by default the log is text, without what monitors ask") {
  Given given;
  apply(given.flags);
  CHECK(logs(LogLevel::kInfo));
  CHECK_FALSE(logs(LogLevel::kDebug));
  test::Captured log;
  log_info("loaded");
  CHECK_THAT(log.end(), Catch::EndsWith("[info] loaded\n"));
}

TEST_CASE("the log is written in the format and from the level that the flags name") {
  Given given;
  REQUIRE(given.set("log-format", "json").ok());
  REQUIRE(given.set("log-level", "error").ok());
  apply(given.flags);
  CHECK_FALSE(logs(LogLevel::kWarning));
  test::Captured log;
  log_warning("not written");
  log_error("written");
  CHECK(nlohmann::json::parse(log.end())["message"] == "written");
  for (const char* level : {"debug", "info", "warning"}) {
    REQUIRE(given.set("log-level", level).ok());
    apply(given.flags);
    CHECK(logs(LogLevel::kWarning));
  }
}

TEST_CASE("other formats and levels are refused") {
  Given given;
  CHECK_FALSE(given.set("log-format", "xml").ok());
  CHECK_FALSE(given.set("log-level", "chatty").ok());
}

}  // namespace
}  // namespace spillway::log_flags_test
