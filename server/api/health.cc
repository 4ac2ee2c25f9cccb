#include "server/api/health.h"

#include <string>

namespace spillway {
namespace {

ApiError trouble(const std::string& message, const char* code) {
  ApiError error = engine_failed();
  error.message = message;
  error.code = code;
  return error;
}

bool fails(const SchedulerStats& stats) {
  return stats.failures_in_a_row >= kFailedSweepsMax;
}

bool failures_count(const SchedulerStats& stats) {
  const bool idle = stats.running + stats.waiting == 0;
  return !idle || stats.failed_seconds_ago < kFailuresCountSeconds;
}

std::string failures_text(const SchedulerStats& stats) {
  return "The last " + std::to_string(stats.failures_in_a_row) + " sweeps failed";
}

}  // namespace

std::optional<ApiError> engine_trouble(const SchedulerStats& stats, int64_t stall_seconds) {
  if (!stats.healthy) return engine_failed();
  if (stall_seconds > 0 && stats.stalled_seconds > static_cast<double>(stall_seconds)) {
    return trouble("Sequences wait and no sweep has ended for " +
                       std::to_string(static_cast<int64_t>(stats.stalled_seconds)) +
                       " s; --stall-seconds allows " + std::to_string(stall_seconds) + ".",
                   "engine_stalled");
  }
  if (fails(stats) && failures_count(stats)) {
    return trouble(failures_text(stats) + "; the server's log says why.", "sweeps_failed");
  }
  return {};
}

std::string engine_doubt(const SchedulerStats& stats) {
  if (!fails(stats) || failures_count(stats)) return "";
  return failures_text(stats) + ", " +
         std::to_string(static_cast<int64_t>(stats.failed_seconds_ago)) +
         " s ago, and nothing was asked since; the next request will show.";
}

}  // namespace spillway
