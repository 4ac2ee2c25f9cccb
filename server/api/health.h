// Whether the engine does its work, as GET /health and the metrics tell. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "scheduler/scheduler.h"
#include "server/http/error.h"

namespace spillway {

// Sweeps that fail one after another before the engine counts as failing: one bad read is no state.
constexpr int64_t kFailedSweepsMax = 3;

// Only a good sweep shows that the engine is well again, and whoever sends nothing to a server that
// says it is not would never see one. So failures count while there is work, and else for so long.
constexpr double kFailuresCountSeconds = 60;

// None: it is well, or has nothing to do. Else why not, 503. `stall_seconds`: there is work and no
// sweep has ended for longer; 0: never a reason.
std::optional<ApiError> engine_trouble(const SchedulerStats& stats, int64_t stall_seconds);

// What speaks against an engine without trouble: failures that count no more. Empty: nothing.
std::string engine_doubt(const SchedulerStats& stats);

}  // namespace spillway
