// /v1/files and /v1/batches: OpenAI's Batch API over the stores of files and batches.
#pragma once

#include <cstdint>

#include "server/api/service.h"
#include "server/batches/batch_table.h"
#include "server/batches/batch_worker.h"
#include "server/batches/file_store.h"
#include "server/http/router.h"

namespace spillway {

struct BatchApi {
  FileStore& files;
  BatchTable& batches;
  BatchWorker& worker;
  const ApiContext& context;
  // The name under which the stores keep what a client hands in: a hash of its key, empty without
  // keys. By the key's number.
  std::vector<std::string> owners;
  int64_t unfinished_max = 1000;  // Batches of one owner that have not ended
};

// The latest batches of a key's number, as a JSON list of their objects.
std::string latest_batches(const BatchApi& api, uint64_t api_key);

// Adds the routes. `api` outlives the router.
void add_batch_routes(Router& router, BatchApi& api);

}  // namespace spillway
