// A trace that keeps its spans for a test to look at.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/trace.h"

namespace spillway::test {

class RecordingTrace : public Trace {
 public:
  struct Span {
    Track track;
    std::string name, value_name;
    int64_t value;
    double start, end;
  };

  Track track(std::string_view name) override {
    tracks.emplace_back(name);
    return Track{static_cast<uint32_t>(tracks.size() - 1)};
  }
  void span(Track track, const char* name, double start, double end, const char* value_name,
            int64_t value) override {
    spans.push_back({track, name, value_name, value, start, end});
  }
  void counter(const char*, double, double) override {}

  std::vector<std::string> tracks;
  std::vector<Span> spans;
};

}  // namespace spillway::test
