// Server-sent events in the form that completion clients parse: "data: " with one space, one line,
// LF LF. Pure, any thread.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/check.h"

namespace spillway {

// One event. REQUIRES: no CR and no LF in `json` (dumped JSON has none).
inline std::string sse_event(std::string_view json) {
  SPILLWAY_CHECK(json.find('\r') == std::string_view::npos &&
                 json.find('\n') == std::string_view::npos);
  std::string event;
  event.reserve(json.size() + 8);
  return event.append("data: ").append(json).append("\n\n");
}

// Keeps a silent stream alive; readers skip it.
constexpr std::string_view kSsePing = ": ping\n\n";

constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace spillway
