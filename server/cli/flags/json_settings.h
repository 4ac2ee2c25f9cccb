// Settings in JSON files (--config, --plan). Bounded and strict.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/base/status.h"

namespace spillway {

// A file's text, at most 1 MiB. `place` names it in errors.
Result<std::string> read_json_text(const std::string& path, const std::string& place);

// 8, "8GiB", true, [20, 80, 0] as a flag would carry them. kInvalidArgument, at `place`, for
// anything else.
Result<std::string> setting_text(const nlohmann::json& value, const std::string& place);

}  // namespace spillway
