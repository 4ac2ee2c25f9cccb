// Walks a parsed template and writes its text.
#pragma once

#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "server/chat/jinja_ast.h"
#include "server/chat/jinja_run.h"

namespace spillway::jinja {

// The text of `program` with `variables`, an object; empty when `run` has failed.
std::string render(Run& run, const Program& program, const nlohmann::ordered_json& variables,
                   size_t output_bytes_max, const std::optional<std::tm>& now);

}  // namespace spillway::jinja
