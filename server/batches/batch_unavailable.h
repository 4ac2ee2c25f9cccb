// The routes of files and batches at a server that should have them and cannot: another server has
// the folder.
#pragma once

#include "server/http/router.h"

namespace spillway {

// Answers /v1/files and /v1/batches, and all below them, with 503 batches_unavailable. As unknown
// URLs they would tell a client that this is no server of batches.
void add_unavailable_batch_routes(Router& router);

}  // namespace spillway
