// Whether the engine does its work, as GET /health and the metrics tell. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/scheduler.h"
#include "server/api/error.h"

namespace spillway {

// Sweeps that fail one after another before the engine counts as failing: one bad read is no state.
constexpr int64_t kFailedSweepsMax = 3;

// None: it is well, or has nothing to do. Else why not, 503. `stall_seconds`: there is work and no
// sweep has ended for longer; 0: never a reason.
std::optional<ApiError> engine_trouble(const SchedulerStats& stats, int64_t stall_seconds);

}  // namespace spillway
