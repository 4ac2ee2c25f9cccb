// Server-sent events as clients of completions read them: "data: " with one space, one line, LF LF.
// Pure, any thread.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// One event. REQUIRES: no CR and no LF in `json` (dumped JSON has none).
std::string sse_event(std::string_view json);

// Keeps a silent stream alive; readers skip it.
constexpr std::string_view kSsePing = ": ping\n\n";

constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace spillway
