// The bodies of requests as JSON Schemas, for the description of the API. Pure, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api/completion.h"

namespace spillway {

// Schemas by name: every field with its type, range and default. Limits, names and the context's
// length are those of `context`.
nlohmann::ordered_json request_schemas(const ApiContext& context);

}  // namespace spillway
