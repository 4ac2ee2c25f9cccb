// The description of the HTTP API in OpenAPI 3.1, for people, clients' generators and fuzzers:
// every route with its fields, ranges and statuses. Pure, any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api/completion.h"

namespace spillway {

// Limits, names and the context's length are those of `context`. `batches`: with the routes of
// files and batches.
nlohmann::ordered_json openapi_document(const ApiContext& context, bool batches);

}  // namespace spillway
