// Lines of OpenAI's Batch API.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/api/api_support.h"

namespace spillway::test {

// A line with its end.
inline std::string batch_line(const std::string& id, const Json& body,
                              const std::string& url = "/v1/completions") {
  return Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

}  // namespace spillway::test
