// What `spillway cache` prints, from made-up contents.
#include "server/cli/cache/cache_report.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace spillway::cache_report_test {
namespace {

using nlohmann::json;

constexpr int64_t kDay = int64_t{86400} * 1'000'000'000;
constexpr int64_t kNow = 20'000 * kDay;

CacheReport listed() {
  CacheReport report;
  report.now_ns = kNow;
  report.free_bytes = uint64_t{100} << 30;
  CacheContents& contents = report.contents;
  contents.directory = "/c";
  CachedModel old{"/c/old.spill", uint64_t{3} << 30, kNow - 31 * kDay, false, "", "old\x1b[m"};
  old.format = Format::kQ4;
  old.layout = MatrixLayout::kPanels16;
  old.origin = "/m/old";
  old.origin_state = OriginState::kChanged;
  CachedModel fresh{"/c/new.spill", uint64_t{1} << 30, kNow - 5'000'000'000, true, "", "new"};
  fresh.format = Format::kBF16;
  const CachedModel bad{"/c/bad.spill", 4096, kNow, false, "/c/bad.spill: too short"};
  contents.models = {old, fresh, bad};
  contents.partial = {{"/c/x.partial", 1 << 20, false}, {"/c/y.partial", 1 << 20, true}};
  contents.profiles = {{"/c/hardware-cpu.json", 2048}};
  return report;
}

TEST_CASE("the list of a cache for people") {
  const std::string text = text_of(listed());
  CHECK_THAT(text, Catch::StartsWith("/c: 3 packed models, 4.00 GiB; 100 GiB are free there\n"));
  CHECK_THAT(text, Catch::Contains(" 3.00 GiB  q4    used 31 days ago       old?[m\n"
                                   "           /c/old.spill\n"
                                   "           made from /m/old, which has changed: it is packed "
                                   "anew when it is used\n"));
  CHECK_THAT(text, Catch::Contains(" 1.00 GiB  bf16  used 5 s ago           new, in use now\n") &&
                       Catch::Contains("made from what was not noted by an older version\n"));
  CHECK_THAT(text, Catch::Contains("damaged\n           /c/bad.spill\n           /c/bad.spill: "
                                   "too short\n"));
  CHECK_THAT(text,
             Catch::Contains(" 1.00 MiB  left by an interrupted conversion: /c/x.partial\n") &&
                 Catch::Contains(" 1.00 MiB  being written: /c/y.partial\n") &&
                 Catch::EndsWith(" 2.00 KiB  hardware profile: /c/hardware-cpu.json\n"));
}

TEST_CASE("the list of a cache as JSON") {
  const json root = json::parse(json_of(listed()));
  CHECK(root["directory"] == "/c");
  CHECK(root["bytes"] == (uint64_t{4} << 30) + 4096 + (2 << 20));
  CHECK(root["free_bytes"] == uint64_t{100} << 30);
  CHECK(root["models"][0] == json{{"path", "/c/old.spill"},
                                  {"bytes", uint64_t{3} << 30},
                                  {"last_used", "2024-09-03T00:00:00Z"},
                                  {"unused_seconds", 31 * 86400.0},
                                  {"in_use", false},
                                  {"model", "old\x1b[m"},
                                  {"format", "q4"},
                                  {"layout", "panels16"},
                                  {"checkpoint", "/m/old"},
                                  {"checkpoint_state", "changed"}});
  CHECK(root["models"][1]["checkpoint"].is_null());
  CHECK(root["models"][1]["in_use"] == true);
  CHECK(root["models"][2]["damage"] == "/c/bad.spill: too short");
  CHECK(root["partial"][1] == json{{"path", "/c/y.partial"}, {"bytes", 1 << 20}, {"in_use", true}});
  CHECK(root["profiles"][0]["bytes"] == 2048);
}

TEST_CASE("what prune did, or would do") {
  CacheReport report = listed();
  report.pruned = PruneResult{{{"/c/old.spill", uint64_t{3} << 30}}, {"/c/new.spill"}, {}, 4096};
  CHECK(text_of(report) ==
        "removed /c/old.spill, 3.00 GiB\nin use: /c/new.spill\n"
        "/c: 1 file removed, 3.00 GiB; 4.00 KiB left\n");
  report.dry_run = true;
  CHECK(text_of(report) ==
        "would remove /c/old.spill, 3.00 GiB\nin use: /c/new.spill\n"
        "/c: 1 file to remove, 3.00 GiB; 4.00 KiB would be left\n");
  const json root = json::parse(json_of(report));
  CHECK(root["dry_run"] == true);
  CHECK(root["removed"] == json{{{"path", "/c/old.spill"}, {"bytes", uint64_t{3} << 30}}});
  CHECK(root["in_use"] == json{"/c/new.spill"});
  CHECK(root["bytes"] == 4096);
  CHECK(root["failures"].empty());
}

}  // namespace
}  // namespace spillway::cache_report_test
