// The log's line of a request (server/log.h): never the prompt, the answer, the query or a key.
//
//   request id=req-5f... client=127.0.0.1 method=POST path=/v1/completions status=200
//   prompt_tokens=12 cached_tokens=0 generated_tokens=16 queue_seconds=0.0021
//   first_token_seconds=0.031 seconds=0.52 finish_reason=length        (on one line)
#pragma once

#include "server/http/request_record.h"

namespace spillway {

// Writes it, for routes that monitors ask again and again (/health, /metrics) at the level kDebug,
// for others at kInfo. Any thread.
void log_request(const RequestReport& report);

}  // namespace spillway
