// The state of the engine for GET /health and the metrics. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "scheduler/scheduler.h"
#include "server/http/error.h"

namespace spillway {

// Consecutive failed sweeps before the engine counts as failing; one bad read is not enough.
constexpr int64_t kFailedSweepsMax = 3;

// Only a good sweep shows that the engine has recovered, and clients that send nothing to a failing
// server would never cause one. So failures count while there is work, and otherwise for this long.
constexpr double kFailuresCountSeconds = 60;

// Empty: the engine is well, or idle. Else the reason, 503. `stall_seconds`: there is work and no
// sweep has ended for longer; 0: never a reason.
std::optional<ApiError> engine_trouble(const SchedulerStats& stats, int64_t stall_seconds);

// Doubts about an engine without trouble: failures that no longer count. Empty: none.
std::string engine_doubt(const SchedulerStats& stats);

}  // namespace spillway
