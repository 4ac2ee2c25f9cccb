// The rows of the queue in a database that many workers share, as a batch's rows.
//
// While the database is away rows that are here go on and their results wait; tries to reach it
// come ever more slowly. Results that nobody could take are not lost: their rows run again
// elsewhere.
//
// Thread rule: as BatchRows.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/batches/batch_rows.h"
#include "server/queue/postgres.h"
#include "server/queue/queue_claims.h"

namespace spillway {

struct QueueRowsOptions {
  std::string url;
  PgOptions connection;
  bool until_done = false;  // next() says kEnd when no job that the worker may answer has rows left
  double poll_seconds = 1;  // Between two looks for work where there was none
  double retry_seconds = 0.5, retry_seconds_max = 30;  // Between tries to reach the database
  double machine_pause_seconds = 30;  // Before another may take rows that the machine failed
  double close_seconds = 10;          // For the last results when the database is away
};

class QueueRows : public BatchRows {
 public:
  // `context` outlives this. `connection`: an open one, to a queue that was checked.
  QueueRows(PgConnection connection, QueueWorker worker, const ApiContext& context,
            QueueRowsOptions options);

  Result<Next> next(int64_t in_flight, int64_t room, BatchRow* row) override;
  Status finish(const JournalRow& result) override;
  Status commit() override;
  Status set_aside(int64_t key, const Status& cause) override;
  Status tick() override;
  JournalCounts counts() const override { return counts_; }

  // Writes what is left and gives back the rest. `fault`: why the engine died, if it did: then as
  // rows that the machine failed. Returns false when the database could not be reached, so that
  // others wait until the lease is over.
  bool close(const std::string& fault);

  // Time with the database, and calls, for the log.
  struct Calls {
    int64_t claims = 0, writes = 0;
    double claim_seconds = 0, write_seconds = 0;
  };
  const Calls& calls() const { return calls_; }
  bool away() const { return retry_at_ > 0; }

 private:
  struct Held {
    Claim claim;        // Without its rows
    int64_t left = 0;   // Rows that have no result yet and are not set aside
    std::string fault;  // Why some were; empty: none was
  };
  struct Place {
    int64_t claim = 0, row = 0;
  };

  bool connected();
  // False for an error: one that may pass has been noted, any other is fatal_. `doing`: empty while
  // connecting.
  bool went_well(const Status& status, const char* doing);
  bool renew();
  bool write();
  bool claim(int64_t room);
  BatchRow take_ready();
  // A row of the claim has its result, or was set aside.
  void settle(int64_t claim);
  void drop_jobs(const std::vector<int64_t>& jobs);

  const ApiContext& context_;
  const QueueWorker worker_;
  const QueueRowsOptions options_;
  std::optional<PgConnection> connection_;
  Status fatal_;

  std::map<int64_t, Held> held_;                      // By claim
  std::map<int64_t, Place> places_;                   // Rows in flight, by key
  std::deque<std::pair<int64_t, ClaimedRow>> ready_;  // With their claims
  int64_t next_key_ = 1;
  // A claim apart: it waits until nothing else runs, then runs.
  enum class Apart : uint8_t { kNone, kWaits, kRuns };
  Apart apart_ = Apart::kNone;
  ClaimId apart_claim_;

  std::vector<RowResult> results_;  // Not written yet
  std::vector<ClaimId> done_;       // Likewise
  std::vector<ClaimId> faulty_;     // To be given back
  std::string fault_;
  JournalCounts counts_;
  Calls calls_;

  double renew_at_ = 0, poll_at_ = 0;
  bool idle_ = false;    // When it looked for work last
  double retry_at_ = 0;  // 0: the database answers
  double retry_pause_ = 0;
  double trouble_at_ = -1e9;  // When it last did not
};

}  // namespace spillway
