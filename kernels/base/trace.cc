#include "kernels/base/trace.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/trace_losses.h"

namespace spillway {

namespace {

// The exception to "no mutable globals", as for a C stream's error flag: see trace_losses.h.
std::atomic<int64_t> incomplete = 0;

constexpr uint32_t kCounter = UINT32_MAX;  // In place of a track: the event is a counter's value.

// No initialisers: the array is not written before it is used, so unused memory costs nothing.
struct RecordedEvent {
  const char* name;
  const char* value_name;
  int64_t value;
  double start;
  double end;  // A counter's value
  uint32_t track;
};

// A row of the timeline: spans of one track that overlap without nesting need several.
struct Row {
  uint32_t track;
  std::vector<double> open_ends;  // Ends of the spans around `now`, outermost first
};

// Quotes and escapes. Names are ASCII or UTF-8.
std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    quoted += c;
  }
  return quoted + '"';
}

constexpr const char* kTraceBegin = "{\"displayTimeUnit\":\"ms\",";
constexpr const char* kTraceEnd = "\n]}\n";
constexpr uint64_t kEventsBetweenFlushes = 512;  // A full disk loses fewer events than this

// Writes the file's text after kTraceBegin. One thread, after everything has been recorded.
class TraceWriter {
 public:
  TraceWriter(std::FILE* file, std::vector<std::string> tracks)
      : file_(file), tracks_(std::move(tracks)) {}

  // Returns the number of events in the file; less than `count` where it cannot be written, with
  // errno of the failure.
  uint64_t write(RecordedEvent* events, size_t count, uint64_t dropped) {
    // Viewers nest by order: outer spans first, where two start together.
    std::sort(events, events + count, [](const RecordedEvent& a, const RecordedEvent& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    origin_ = count == 0 ? 0 : events[0].start;
    errno = 0;
    std::fprintf(file_, "\"otherData\":{\"dropped_events\":\"%llu\"},",
                 static_cast<unsigned long long>(dropped));
    std::fprintf(file_, "\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,");
    std::fprintf(file_, "\"args\":{\"name\":\"spillway\"}}");
    // Tracks stand in the order in which they were made, also those without a span.
    for (uint32_t track = 0; track < tracks_.size(); ++track) add_row(track);
    for (size_t i = 0; i < count; ++i) {
      if (i % kEventsBetweenFlushes == 0 && !keep(i)) return cut();
      events[i].track == kCounter ? counter(events[i]) : span(events[i]);
    }
    if (dropped > 0) note_dropped(dropped, count == 0 ? 0 : events[count - 1].start);
    std::fputs(kTraceEnd, file_);
    return keep(count) ? count : cut();
  }

  // Whether the file is complete.
  bool whole() const { return whole_; }

 private:
  // Flushes everything up to event `next` to the system.
  bool keep(uint64_t next) {
    whole_ = std::fflush(file_) == 0 && std::ferror(file_) == 0;
    if (!whole_) {
      if (errno == 0) errno = EIO;
      return false;
    }
    kept_events_ = next;
    kept_bytes_ = std::ftell(file_);
    return true;
  }

  // Ends the file after the last event that is kept, so that a viewer can open it. The end
  // overwrites an event that was written in part.
  uint64_t cut() {
    const int error = errno;
    const int fd = ::fileno(file_);
    const std::string_view end = kTraceEnd;
    __fpurge(file_);  // Else closing it would write the rest.
    if (kept_bytes_ > 0 && ::ftruncate(fd, kept_bytes_) == 0) {
      // If even this fails, the file has no end.
      [[maybe_unused]] const ssize_t written = ::pwrite(fd, end.data(), end.size(), kept_bytes_);
    }
    errno = error;
    return kept_events_;
  }

  // Microseconds in whole nanoseconds, so that spans that nest in seconds nest in the file.
  double microseconds(double at) const { return std::round((at - origin_) * 1e9) / 1e3; }

  size_t add_row(uint32_t track) {
    rows_.push_back({track, {}});
    const size_t id = rows_.size();
    std::fprintf(file_,
                 ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%zu,"
                 "\"args\":{\"name\":%s}}",
                 id, json_text(tracks_[track]).c_str());
    std::fprintf(file_,
                 ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":1,\"tid\":%zu,"
                 "\"args\":{\"sort_index\":%u}}",
                 id, track);
    return id - 1;
  }

  // The first row of the track on which the span nests.
  size_t row_of(const RecordedEvent& event) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].track != event.track) continue;
      std::vector<double>& ends = rows_[i].open_ends;
      while (!ends.empty() && ends.back() <= event.start) ends.pop_back();
      if (ends.empty() || event.end <= ends.back()) return i;
    }
    return add_row(event.track);
  }

  void span(const RecordedEvent& event) {
    const size_t row = row_of(event);
    rows_[row].open_ends.push_back(event.end);
    std::fprintf(file_,
                 ",\n{\"name\":%s,\"ph\":\"X\",\"pid\":1,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f",
                 json_text(event.name).c_str(), row + 1, microseconds(event.start),
                 microseconds(event.end) - microseconds(event.start));
    if (event.value_name != nullptr) {
      std::fprintf(file_, ",\"args\":{%s:%lld}", json_text(event.value_name).c_str(),
                   static_cast<long long>(event.value));
    }
    std::fputc('}', file_);
  }

  void counter(const RecordedEvent& event) {
    std::fprintf(file_,
                 ",\n{\"name\":%s,\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"args\":{\"value\":%.9g}}",
                 json_text(event.name).c_str(), microseconds(event.start), event.end);
  }

  void note_dropped(uint64_t dropped, double at) {
    std::fprintf(file_,
                 ",\n{\"name\":\"trace is full: %llu later events are missing\",\"ph\":\"i\","
                 "\"s\":\"g\",\"pid\":1,\"tid\":1,\"ts\":%.3f}",
                 static_cast<unsigned long long>(dropped), microseconds(at));
  }

  std::FILE* file_;
  std::vector<std::string> tracks_;
  std::vector<Row> rows_;
  double origin_ = 0;
  bool whole_ = true;
  uint64_t kept_events_ = 0;
  long kept_bytes_ = 0;
};

class FileTrace final : public Trace {
 public:
  FileTrace(std::FILE* file, std::string path, uint64_t events_max)
      : file_(file),
        path_(std::move(path)),
        events_max_(events_max),
        events_(std::make_unique_for_overwrite<RecordedEvent[]>(events_max)) {}

  ~FileTrace() override {
    const uint64_t recorded = next_.load();
    const uint64_t kept = std::min(recorded, events_max_);
    TraceWriter writer(file_, std::move(tracks_));
    const uint64_t written = writer.write(events_.get(), kept, recorded - kept);
    int error = writer.whole() ? 0 : errno;
    if (std::fclose(file_) != 0 && error == 0) error = errno;
    if (error == 0) return;
    // A destructor cannot return a Status: report on stderr.
    ++incomplete;
    std::fprintf(stderr,
                 "spillway: the trace %s is incomplete: %s; it has the first %llu of %llu events, "
                 "the others are lost. Make room there and run it again\n",
                 path_.c_str(), std::strerror(error), static_cast<unsigned long long>(written),
                 static_cast<unsigned long long>(kept));
  }

  Track track(std::string_view name) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(tracks_.begin(), tracks_.end(), name);
    const auto index = static_cast<uint32_t>(found - tracks_.begin());
    if (found == tracks_.end()) tracks_.emplace_back(name);
    return Track{index};
  }

  void span(Track track, const char* name, double start, double end, const char* value_name,
            int64_t value) override {
    record({name, value_name, value, start, std::max(start, end), static_cast<uint32_t>(track)});
  }

  void counter(const char* name, double at, double value) override {
    SPILLWAY_CHECK(std::isfinite(value));
    record({name, nullptr, 0, at, value, kCounter});
  }

 private:
  // Every thread writes a slot of its own: no lock.
  void record(const RecordedEvent& event) {
    const uint64_t slot = next_.fetch_add(1, std::memory_order_relaxed);
    if (slot < events_max_) events_[slot] = event;
  }

  std::FILE* file_;
  const std::string path_;
  const uint64_t events_max_;
  std::unique_ptr<RecordedEvent[]> events_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  std::vector<std::string> tracks_;  // Guarded by mutex_; few, so looked up in order.
};

}  // namespace

int64_t incomplete_traces() {
  return incomplete.load();
}

Result<std::unique_ptr<Trace>> Trace::open(const std::string& path, uint64_t events_max) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return io_error("open the trace " + path, errno);
  // A file that cannot be written at all is an error now, and not hours later in the destructor.
  std::fputs(kTraceBegin, file);
  if (std::fflush(file) != 0) {
    const int error = errno;
    std::fclose(file);
    return io_error("write the trace " + path, error);
  }
  return std::unique_ptr<Trace>(std::make_unique<FileTrace>(file, path, events_max));
}

}  // namespace spillway
