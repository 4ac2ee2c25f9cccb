// The last seconds of a program's work in memory, for somebody who looks at it while it runs. As a
// Trace it takes spans, and hands them on to another one; it keeps them only while it is watched.
//
// Any thread. Names as in trace.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/trace.h"

namespace spillway {

class Timeline : public Trace {
 public:
  static constexpr size_t kSpansMax = 16384;  // Kept at once, 384 KiB; the oldest go first

  // `next`: may be null.
  explicit Timeline(std::unique_ptr<Trace> next) : next_(std::move(next)) {}

  Track track(std::string_view name) override;
  void span(Track track, const char* name, double start, double end,
            const char* value_name = nullptr, int64_t value = 0) override;
  void counter(const char* name, double at, double value) override;

  // Keeps spans that end before this time (steady_seconds); a later one extends it.
  void watch_until(double time);

  // What was busy when: disjoint spans in order, in seconds since `start`.
  struct Row {
    std::string name;
    std::vector<std::pair<double, double>> spans;
  };
  // The tracks that have spans between these times, in the order in which they were made. Gaps
  // shorter than a `parts_max`-th of the time are filled, so that no row has more spans.
  std::vector<Row> between(double start, double end, size_t parts_max) const;

 private:
  struct Span {
    uint32_t track;
    double start, end;
  };

  const std::unique_ptr<Trace> next_;
  std::atomic<double> watched_until_{0};
  mutable std::mutex mutex_;                           // For all below
  std::vector<std::pair<std::string, Track>> tracks_;  // By our number: name, and next_'s
  std::vector<Span> spans_;
  size_t oldest_ = 0;  // Of a full spans_
};

}  // namespace spillway
