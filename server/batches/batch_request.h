// The body of POST /v1/batches. Pure, any thread.
#pragma once

#include <string>

#include "server/batches/batch_record.h"
#include "server/http/error.h"

namespace spillway {

// Seconds after which a client may let its files expire.
constexpr int64_t kExpiryLeast = 3600, kExpiryMost = 30 * 24 * 3600;

// The batch as the body describes it: endpoint, input file (which need not be there), window,
// metadata and the expiry of its results; it has no id and no owner yet. `now`: Unix seconds. The
// error names the field.
ApiResult<BatchRecord> read_batch_request(const std::string& body, int64_t now);

}  // namespace spillway
