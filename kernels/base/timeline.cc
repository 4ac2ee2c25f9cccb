#include "kernels/base/timeline.h"

#include <algorithm>

namespace spillway {

Trace::Track Timeline::track(std::string_view name) {
  const Track next = next_ != nullptr ? next_->track(name) : Track{};
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < tracks_.size(); ++i) {
    if (tracks_[i].first == name) return Track{static_cast<uint32_t>(i)};
  }
  tracks_.emplace_back(name, next);
  return Track{static_cast<uint32_t>(tracks_.size() - 1)};
}

void Timeline::span(Track track, const char* name, double start, double end, const char* value_name,
                    int64_t value) {
  const auto number = static_cast<uint32_t>(track);
  const bool watched = end <= watched_until_.load(std::memory_order_relaxed);
  if (!watched && next_ == nullptr) return;
  Track next{};
  {
    const std::lock_guard lock(mutex_);
    next = tracks_[number].second;
    if (watched && spans_.size() < kSpansMax) {
      spans_.push_back({number, start, end});
    } else if (watched) {
      spans_[oldest_] = {number, start, end};
      oldest_ = (oldest_ + 1) % kSpansMax;
    }
  }
  if (next_ != nullptr) next_->span(next, name, start, end, value_name, value);
}

void Timeline::counter(const char* name, double at, double value) {
  if (next_ != nullptr) next_->counter(name, at, value);
}

void Timeline::watch_until(double time) {
  double before = watched_until_.load();
  while (before < time && !watched_until_.compare_exchange_weak(before, time)) {
  }
}

std::vector<Timeline::Row> Timeline::between(double start, double end, size_t parts_max) const {
  std::vector<Row> rows;
  std::vector<std::vector<std::pair<double, double>>> found;
  {
    const std::lock_guard lock(mutex_);
    found.resize(tracks_.size());
    for (const Span& span : spans_) {
      const double from = std::max(span.start, start), to = std::min(span.end, end);
      if (from < to) found[span.track].emplace_back(from - start, to - start);
    }
    for (const auto& [name, next] : tracks_) rows.push_back({name, {}});
  }
  const double gap = (end - start) / static_cast<double>(std::max<size_t>(1, parts_max));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::sort(found[i].begin(), found[i].end());
    auto& spans = rows[i].spans;
    for (const auto& [from, to] : found[i]) {
      if (!spans.empty() && from <= spans.back().second + gap) {
        spans.back().second = std::max(spans.back().second, to);
      } else {
        spans.emplace_back(from, to);
      }
    }
  }
  std::erase_if(rows, [](const Row& row) { return row.spans.empty(); });
  return rows;
}

}  // namespace spillway
