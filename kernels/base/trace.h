// Trace: a timeline of the program's work as Chrome/Perfetto trace events, one track per stream,
// link and waiting thread. A null Trace records nothing and costs a branch.
//
// Thread rule: any thread, without locks (a span costs 45 ns, its two clocks 80 more); the owner
// destroys it when all other threads have stopped. Names of spans and counters must outlive the
// trace (string literals). Spans of a track that overlap without nesting, such as transfers in
// flight on one link, are drawn on further rows of its name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace spillway {

class Trace {
 public:
  enum class Track : uint32_t {};

  static constexpr uint64_t kEventsMax = uint64_t{1} << 20;  // 48 MiB, committed as events come

  // Opens the file at once (replacing what it held), so that a bad path is known before the work;
  // the events are written when the trace is destroyed, which reports a failure on stderr. The
  // first `events_max` events are kept; the file says how many more there were.
  static Result<std::unique_ptr<Trace>> open(const std::string& path,
                                             uint64_t events_max = kEventsMax);
  virtual ~Trace() = default;

  // A row of the timeline, such as "compute", "disk -> host" or "engine waits". The same name gives
  // the same track.
  virtual Track track(std::string_view name) = 0;

  // Records the span `name` from `start` to `end` (steady_seconds). `value` is shown under
  // `value_name` (bytes, layer, ...); a null value_name leaves it out.
  virtual void span(Track track, const char* name, double start, double end,
                    const char* value_name = nullptr, int64_t value = 0) = 0;

  // Records a number that changes over time, such as bytes in flight. REQUIRES: finite.
  virtual void counter(const char* name, double at, double value) = 0;
};

// Records the span of its own lifetime.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Trace::Track track, const char* name, const char* value_name = nullptr,
            int64_t value = 0)
      : trace_(trace), track_(track), name_(name), value_name_(value_name), value_(value) {
    if (trace_ != nullptr) start_ = steady_seconds();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (trace_ != nullptr) {
      trace_->span(track_, name_, start_, steady_seconds(), value_name_, value_);
    }
  }

 private:
  Trace* trace_;
  Trace::Track track_;
  const char* name_;
  const char* value_name_;
  int64_t value_;
  double start_ = 0;
};

}  // namespace spillway
