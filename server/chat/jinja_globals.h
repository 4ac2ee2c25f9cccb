// The global functions of a template.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

bool is_global(std::string_view name);

// Calls a global function. `now`: the time for strftime_now(); empty: the clock's, in local time.
Value call_global(Run& run, const std::string& name, const Arguments& arguments,
                  const std::optional<std::tm>& now);

}  // namespace spillway::jinja
