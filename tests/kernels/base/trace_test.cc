// The trace file, read back as a viewer reads it.
#include "kernels/base/trace.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "kernels/base/trace_losses.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/full_disk.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_directory.h"

namespace spillway::trace_test {
namespace {

using nlohmann::json;

// Rows by their number: the name that a viewer shows.
std::map<int, std::string> row_names(const json& file) {
  std::map<int, std::string> names;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  return names;
}

std::vector<json> events_of(const json& file, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

// Every span lies inside or beside the earlier spans of its row, as viewers need it.
void check_rows_nest(const json& file) {
  std::map<int, std::vector<double>> open_ends;
  double last = 0;
  for (const json& span : events_of(file, "X")) {
    const double start = span["ts"], end = start + span["dur"].get<double>();
    CHECK(start >= last);
    last = start;
    std::vector<double>& ends = open_ends[span["tid"]];
    // Sums of two decimals differ from the third by less than this.
    constexpr double kRounding = 1e-6;
    while (!ends.empty() && ends.back() <= start + kRounding) ends.pop_back();
    if (!ends.empty()) CHECK(end <= ends.back() + kRounding);
    ends.push_back(end);
  }
}

TEST_CASE("a trace has its tracks, spans and counters, in microseconds from the first event") {
  const TempDirectory directory;
  const std::string path = directory / "trace.json";
  {
    auto trace = Trace::open(path).value();
    const Trace::Track waits = trace->track("engine \"waits\"");
    const Trace::Track compute = trace->track("compute");
    CHECK(trace->track("compute") == compute);
    CHECK(waits != compute);
    trace->span(compute, "linear", 100.5, 100.75, "rows", 32);
    trace->span(compute, "layer", 100.5, 101);
    trace->counter("bytes in flight", 100.25, 1 << 20);
  }
  const json file = test::read_json(path);
  CHECK(file["otherData"]["dropped_events"] == "0");
  const auto names = row_names(file);
  REQUIRE(names.size() == 2);
  CHECK(names.at(1) == "engine \"waits\"");
  CHECK(names.at(2) == "compute");

  const std::vector<json> spans = events_of(file, "X");
  REQUIRE(spans.size() == 2);
  CHECK(spans[0]["name"] == "layer");  // Around the other, so before it
  CHECK(spans[0]["tid"] == 2);
  CHECK(spans[0]["ts"] == 250e3);
  CHECK(spans[0]["dur"] == 500e3);
  CHECK_FALSE(spans[0].contains("args"));
  CHECK(spans[1]["args"] == json{{"rows", 32}});
  const std::vector<json> counters = events_of(file, "C");
  REQUIRE(counters.size() == 1);
  CHECK(counters[0]["ts"] == 0);
  CHECK(counters[0]["args"]["value"] == 1 << 20);
}

TEST_CASE("transfers that overlap on one link get rows of its name") {
  const TempDirectory directory;
  const std::string path = directory / "trace.json";
  {
    auto trace = Trace::open(path).value();
    const Trace::Track link = trace->track("disk -> host");
    trace->span(link, "a", 1, 3);
    trace->span(link, "b", 2, 4);  // Over the end of a
    trace->span(link, "c", 3, 5);  // After a, over the end of b
    trace->span(link, "d", 3.5, 4.5);
  }
  const json file = test::read_json(path);
  check_rows_nest(file);
  std::map<std::string, int> row;
  for (const json& span : events_of(file, "X")) row[span["name"]] = span["tid"];
  CHECK(row == std::map<std::string, int>{{"a", 1}, {"b", 2}, {"c", 1}, {"d", 1}});
  CHECK(row_names(file) == std::map<int, std::string>{{1, "disk -> host"}, {2, "disk -> host"}});
}

TEST_CASE("threads record together, and the limit keeps the first events and counts the rest") {
  const TempDirectory directory;
  const std::string path = directory / "trace.json";
  constexpr int kThreads = 4, kSpans = 5000;
  const bool full = GENERATE(false, true);
  constexpr uint64_t kAll = uint64_t{2} * kThreads * kSpans;
  const uint64_t limit = full ? kAll / 4 : kAll;
  {
    auto trace = Trace::open(path, limit).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const Trace::Track track = trace->track("thread " + std::to_string(t));
        for (int i = 0; i < kSpans; ++i) {
          const TraceSpan outer(trace.get(), track, "outer", "i", i);
          const TraceSpan inner(trace.get(), track, "inner");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const json file = test::read_json(path);
  CHECK(row_names(file).size() == kThreads);
  CHECK(events_of(file, "X").size() == limit);
  CHECK(file["otherData"]["dropped_events"] == std::to_string(kAll - limit));
  CHECK(events_of(file, "i").size() == (full ? 1 : 0));
  check_rows_nest(file);
}

TEST_CASE("a trace without events is a file that loads") {
  const TempDirectory directory;
  const std::string path = directory / "trace.json";
  CHECK(Trace::open(path).ok());
  CHECK(events_of(test::read_json(path), "X").empty());
}

TEST_CASE("a trace that cannot be written is refused before the work") {
  const TempDirectory directory;
  const Status status = Trace::open(directory / "missing/trace.json").status();
  CHECK(status.code() == Code::kNotFound);
  CHECK_THAT(std::string(status.message()), Catch::Contains("missing/trace.json"));
}

TEST_CASE("a trace whose disk fills up keeps what there is room for, says so and is counted") {
  const TempDirectory directory;
  const std::string path = directory / "trace.json";
  constexpr int kSpans = 5000;
  const int64_t before = incomplete_traces();
  test::Captured captured;
  {
    const test::FullDisk full(100'000);
    auto trace = Trace::open(path).value();
    const Trace::Track track = trace->track("compute");
    for (int i = 0; i < kSpans; ++i) trace->span(track, "linear", i, i + 0.5, "rows", i);
    trace.reset();
  }
  const std::string said = captured.end();
  CHECK(incomplete_traces() == before + 1);
  const size_t kept = events_of(test::read_json(path), "X").size();
  CHECK(kept > 0);
  CHECK(kept < kSpans);
  CHECK_THAT(said, Catch::Contains(path) &&
                       Catch::Contains("the first " + std::to_string(kept) + " of 5000 events"));
}

TEST_CASE("a trace that is whole is not counted as incomplete") {
  const TempDirectory directory;
  const int64_t before = incomplete_traces();
  Trace::open(directory / "trace.json").value()->counter("bytes", 1, 2);
  CHECK(incomplete_traces() == before);
}

TEST_CASE("a null trace records nothing") {
  const TraceSpan span(nullptr, Trace::Track{0}, "nothing");
}

}  // namespace
}  // namespace spillway::trace_test
