// Between JSON and the values of a template.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/chat/jinja_run.h"

namespace spillway::jinja {

// A value of the caller's; fails beyond the limits of `run`, and on integers beyond int64.
Value value_of(Run& run, const nlohmann::ordered_json& json);

// The filter tojson as transformers defines it: json.dumps(input, ensure_ascii=False, indent=None,
// separators=None, sort_keys=False).
Value tojson_filter(Run& run, const Value& input, const Arguments& arguments);

}  // namespace spillway::jinja
