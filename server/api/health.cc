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

}  // namespace

std::optional<ApiError> engine_trouble(const SchedulerStats& stats, int64_t stall_seconds) {
  if (!stats.healthy) return engine_failed();
  if (stall_seconds > 0 && stats.stalled_seconds > static_cast<double>(stall_seconds)) {
    return trouble("Sequences wait and no sweep has ended for " +
                       std::to_string(static_cast<int64_t>(stats.stalled_seconds)) +
                       " s; --stall-seconds allows " + std::to_string(stall_seconds) + ".",
                   "engine_stalled");
  }
  if (stats.failures_in_a_row >= kFailedSweepsMax) {
    return trouble("The last " + std::to_string(stats.failures_in_a_row) +
                       " sweeps failed; the server's log says why.",
                   "sweeps_failed");
  }
  return {};
}

}  // namespace spillway
