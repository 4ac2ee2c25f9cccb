#include "server/batches/batch_service.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace spillway {
namespace {

// What the stores know of a key: not the key itself.
std::string owner_of_key(const std::string& key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

Status make_private(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) {
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  }
  if (error) return {Code::kIoError, directory + ": " + error.message()};
  return {};
}

}  // namespace

Result<std::unique_ptr<BatchService>> BatchService::open(BatchServiceOptions options,
                                                         Scheduler& scheduler,
                                                         const ApiContext& context) {
  std::unique_ptr<BatchService> service(new BatchService());
  SPILLWAY_RETURN_IF_ERROR(make_private(options.directory));
  SPILLWAY_ASSIGN_OR_RETURN(service->files_, FileStore::open(options.directory, options.files));
  SPILLWAY_ASSIGN_OR_RETURN(service->batches_, BatchTable::open(options.directory));
  service->mark_path_ = options.directory + "/crashed";
  const int64_t queue = std::max<int64_t>(1, scheduler.queue_max());
  const int64_t most = options.worker.sequences_max;
  service->mark_ = std::make_unique<CrashMark>(
      service->mark_path_, static_cast<size_t>(most > 0 ? std::min(most, queue) : queue));
  options.worker.directory = options.directory;
  options.worker.marks = service->mark_->slots();
  service->worker_ = std::make_unique<BatchWorker>(*service->files_, *service->batches_, scheduler,
                                                   context, std::move(options.worker));
  std::vector<std::string> owners = {""};
  for (const std::string& key : options.api_keys) owners.push_back(owner_of_key(key));
  service->api_.reset(new BatchApi{*service->files_, *service->batches_, *service->worker_, context,
                                   std::move(owners), options.unfinished_max});
  return service;
}

BatchService::~BatchService() {
  stop();
}

BatchFigures BatchService::figures() const {
  BatchFigures figures;
  const auto counts = batches_->counts();
  for (size_t i = 0; i < kBatchStates; ++i) {
    figures.batches.emplace_back(batch_state_name(static_cast<BatchState>(i)), counts[i]);
  }
  const BatchWorker::Results now = worker_->results();
  figures.rows_completed = now.completed;
  figures.rows_failed = now.failed;
  // The two change one after the other.
  figures.rows_pending =
      std::max<int64_t>(0, batches_->rows_in_progress() - now.completed - now.failed);
  return figures;
}

void BatchService::start() {
  CrashMark::Crash crash = CrashMark::read(mark_path_);
  // First: counting one crash twice would convict innocent lines.
  ::unlink(mark_path_.c_str());
  worker_->start(std::move(crash));
}

void BatchService::stop() {
  if (worker_ != nullptr) worker_->stop();  // Null: open() failed.
}

}  // namespace spillway
