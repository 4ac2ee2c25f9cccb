// The batches of a server, in one SQLite file: DIR/batches.db. Any thread; calls block for the
// disk.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "scheduler/database.h"
#include "server/batches/batch_record.h"

namespace spillway {

class BatchTable {
 public:
  // kCapacity: another process has it. kCorruption: a row cannot be read.
  static Result<std::unique_ptr<BatchTable>> open(const std::string& directory);

  // Adds a batch; it is there after a power cut, too, once this returns.
  Status add(const BatchRecord& record);

  // kNotFound: there is none of this owner's.
  Result<BatchRecord> find(const std::string& owner, const std::string& id) const;

  // The batch, whoever's it is. kNotFound: there is none.
  Result<BatchRecord> get(const std::string& id) const;

  // Changes a batch as `change` does, if it returns OK; gives what there is now. Nobody else
  // changes it meanwhile. kNotFound: there is no such batch of any owner.
  Result<BatchRecord> update(const std::string& id,
                             const std::function<Status(BatchRecord&)>& change);

  struct Listing {
    std::vector<BatchRecord> batches;
    bool more = false;
  };
  // The newest first, from behind `after` (empty: all). kNotFound: there is no batch `after`.
  Result<Listing> list(const std::string& owner, const std::string& after, int64_t limit) const;

  // Calls `visit` with those of all owners that have not ended, the oldest first, until it returns
  // false. From memory: waits for no disk. `visit` must not call the table.
  void for_each_unfinished(const std::function<bool(const BatchRecord&)>& visit) const;

  // How many are in each state.
  std::array<int64_t, kBatchStates> counts() const;

  // Lines of the batches in progress. Neither this nor counts() waits for the disk.
  int64_t rows_in_progress() const { return rows_in_progress_; }

 private:
  explicit BatchTable(Database database) : database_(std::move(database)) {}
  Status read();
  void count(const BatchRecord& record, int64_t times);
  void count_rows(const BatchRecord& record, int64_t times);

  // REQUIRES of all: mutex_ is held.
  const BatchRecord* find_unfinished(const std::string& id) const;
  Result<BatchRecord> get_locked(const std::string& id) const;
  void remember(const BatchRecord& record);

  mutable std::mutex mutex_;
  mutable Database database_;
  // Those that have not ended, by age, and their places by id. Workers look at them all the time.
  std::map<int64_t, BatchRecord> unfinished_;
  std::map<std::string, int64_t> places_;
  int64_t next_place_ = 0;
  std::array<std::atomic<int64_t>, kBatchStates> counts_{};  // As in the table
  std::atomic<int64_t> rows_in_progress_{0};
};

}  // namespace spillway
