// Batches over HTTP as one part of a server: the stores, the worker and the routes. Main thread,
// but for what the routes do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/metrics.h"
#include "server/batches/batch_api.h"

namespace spillway {

struct BatchServiceOptions {
  std::string directory;
  FileLimits files;
  BatchWorkerOptions worker;  // Its directory and marks are the service's
  std::vector<std::string> api_keys;
  int64_t unfinished_max = 1000;  // Batches of one owner that have not ended
};

class BatchService {
 public:
  // Opens the stores; runs nothing yet. kCapacity: another process has the directory. `scheduler`
  // and `context` outlive the service.
  static Result<std::unique_ptr<BatchService>> open(BatchServiceOptions options,
                                                    Scheduler& scheduler,
                                                    const ApiContext& context);
  ~BatchService();  // stop()
  BatchService(const BatchService&) = delete;
  BatchService& operator=(const BatchService&) = delete;

  void add_routes(Router& router) { add_batch_routes(router, *api_); }

  std::string latest(uint64_t api_key) const { return latest_batches(*api_, api_key); }

  // For the metrics; does not wait for the disk. Any thread.
  BatchFigures figures() const;

  // Goes on with the batches that have not ended.
  void start();

  // Ends what runs, with the finished lines kept. Idempotent.
  void stop();

 private:
  BatchService() = default;

  std::string mark_path_;
  std::unique_ptr<FileStore> files_;
  std::unique_ptr<BatchTable> batches_;
  std::unique_ptr<CrashMark> mark_;
  std::unique_ptr<BatchWorker> worker_;
  std::unique_ptr<BatchApi> api_;
};

}  // namespace spillway
