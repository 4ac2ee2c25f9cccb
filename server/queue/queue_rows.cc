#include "server/queue/queue_rows.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "server/log.h"
#include "server/queue/queue_schema.h"

namespace spillway {

namespace {

constexpr double kRenewals = 4;  // In the time of a lease

}  // namespace

QueueRows::QueueRows(PgConnection connection, QueueWorker worker, const ApiContext& context,
                     QueueRowsOptions options)
    : context_(context),
      worker_(std::move(worker)),
      options_(std::move(options)),
      connection_(std::move(connection)) {}

// ---- The connection -----------------------------------------------------------------------------

// Whether there is a connection; opens one when a try is due.
bool QueueRows::connected() {
  if (connection_ && !connection_->broken() && retry_at_ == 0) return true;
  if (!fatal_.ok() || steady_seconds() < retry_at_) return false;
  if (!connection_ || connection_->broken()) {
    connection_.reset();
    Result<PgConnection> opened = PgConnection::connect(options_.url, options_.connection);
    if (!went_well(opened.status(), "")) return false;
    connection_ = std::move(opened).value();
    if (!went_well(check_queue(*connection_), "")) return false;
    log_info("The database answers again.");
  }
  retry_at_ = 0;
  return true;
}

bool QueueRows::went_well(const Status& status, const char* doing) {
  if (status.ok()) {
    if (*doing != '\0') retry_pause_ = 0;  // To be connected is not enough: its disk may be full.
    return true;
  }
  if (status.code() != Code::kIoError) {
    fatal_ = *doing == '\0' ? status : status.at(doing);
    return false;
  }
  const double now = steady_seconds();
  retry_pause_ = std::clamp(2 * retry_pause_, options_.retry_seconds, options_.retry_seconds_max);
  retry_at_ = now + retry_pause_;
  trouble_at_ = now;
  // Before the next claim: something may have been claimed without our hearing of it.
  renew_at_ = 0;
  log_warning(std::string(status.message()) + "; the next try is in " +
              format_seconds(retry_pause_) + ". " + std::to_string(places_.size()) +
              " rows are in work, " + std::to_string(results_.size()) +
              " results wait to be written.");
  return false;
}

bool QueueRows::renew() {
  std::vector<int64_t> known, jobs;
  for (const auto& [id, held] : held_) {
    known.push_back(id);
    jobs.push_back(held.claim.job);
  }
  for (const ClaimId& claim : done_) known.push_back(claim.id);
  for (const ClaimId& claim : faulty_) known.push_back(claim.id);
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  Result<std::vector<int64_t>> ended = renew_lease(*connection_, worker_, known, jobs);
  if (!went_well(ended.status(), "renew the lease")) return false;
  renew_at_ = steady_seconds() + worker_.lease_seconds / kRenewals;
  drop_jobs(ended.value());
  return true;
}

bool QueueRows::write() {
  if (results_.empty() && done_.empty() && faulty_.empty()) return true;
  const double began = steady_seconds();
  if (!results_.empty() || !done_.empty()) {
    Result<WrittenResults> written = write_results(*connection_, worker_, results_, done_);
    if (!went_well(written.status(), "write results")) return false;
    ++calls_.writes;
    calls_.write_seconds += steady_seconds() - began;
    if (written->late + written->ended > 0) {
      log_warning(std::to_string(written->late + written->ended) + " results were not written: " +
                  (written->late == 0 ? "their job was cancelled or has expired."
                                      : "others have their rows now, or their job has ended."));
    }
    results_.clear();
    done_.clear();
  }
  if (faulty_.empty()) return true;
  const Status given =
      give_back(*connection_, worker_, faulty_, options_.machine_pause_seconds, fault_);
  if (!went_well(given, "give rows back")) return false;
  faulty_.clear();
  return true;
}

Status QueueRows::tick() {
  const double now = steady_seconds();
  const bool unwritten = retry_at_ > 0 && now >= retry_at_;
  if (now >= renew_at_ || unwritten) {
    if (connected()) (void)(renew() && write());
  }
  return fatal_;
}

Status QueueRows::commit() {
  if (connected()) (void)write();
  return fatal_;
}

bool QueueRows::close(const std::string& fault) {
  if (!fault.empty()) {
    for (const auto& [id, held] : held_) faulty_.push_back({id, held.claim.generation});
    fault_ = fault;
  }
  const double until = steady_seconds() + options_.close_seconds;
  for (;;) {
    retry_at_ = std::min(retry_at_, steady_seconds());
    if (connected()) {
      connection_->set_query_seconds(options_.close_seconds);
      if (write() && went_well(leave_queue(*connection_, worker_), "leave the queue")) return true;
    }
    if (!fatal_.ok() || steady_seconds() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// ---- Rows ---------------------------------------------------------------------------------------

bool QueueRows::claim(int64_t room) {
  if (!connected()) return false;
  const double began = steady_seconds();
  // Others would take what a worker claims of whom they do not know.
  if (began >= renew_at_ && !renew()) return false;
  // When the database was away, leases could not be renewed: those that look over may not be.
  const bool take_over = began - trouble_at_ > worker_.lease_seconds;
  Result<std::optional<Claim>> claimed =
      claim_rows(*connection_, worker_, ClaimRoom{.rows = room}, take_over);
  if (!went_well(claimed.status(), "claim rows")) return false;
  ++calls_.claims;
  calls_.claim_seconds += steady_seconds() - began;
  if (!claimed.value()) return false;
  Claim claim = *std::move(claimed).value();
  const int64_t id = claim.id;
  if (held_.count(id) > 0) {
    // Another server has taken over that has not seen all of the first one's claims.
    const std::vector<ClaimId> other = {{id, claim.generation}};
    (void)went_well(give_back(*connection_, worker_, other, worker_.lease_seconds, ""),
                    "claim rows");
    return false;
  }
  if (claim.apart) {
    apart_ = Apart::kWaits;
    apart_claim_ = {id, claim.generation};
    log_info("Workers vanished with " + std::to_string(claim.rows.size()) + " rows of job " +
             std::to_string(claim.job) + " again and again: they run by themselves here.");
  }
  Held held;
  held.left = static_cast<int64_t>(claim.rows.size());
  for (ClaimedRow& row : std::exchange(claim.rows, {})) ready_.emplace_back(id, std::move(row));
  held.claim = std::move(claim);
  held_[id] = std::move(held);
  return true;
}

BatchRow QueueRows::take_ready() {
  const auto [claim, ready] = std::move(ready_.front());
  ready_.pop_front();
  const Held& held = held_.at(claim);
  InputLine text;
  text.number = ready.number;
  text.text = ready.line;
  text.too_long = ready.too_long;
  BatchRow row;
  row.key = next_key_++;
  row.run_id = held.claim.run_id;
  row.seed = held.claim.seed;
  row.line = read_batch_line(text, context_);
  if (ready.repeats_id) refuse_repeated_id(&row.line);
  if (held.claim.convicted && !row.line.error) row.line.error = crashed_row();
  places_[row.key] = {claim, ready.number};
  return row;
}

Result<BatchRows::Next> QueueRows::next(int64_t in_flight, int64_t room, BatchRow* row) {
  SPILLWAY_RETURN_IF_ERROR(fatal_);
  if (apart_ != Apart::kNone && in_flight > 0 && (apart_ == Apart::kWaits || ready_.empty())) {
    return Next::kLater;
  }
  if (apart_ == Apart::kWaits) {
    // Before rows that may end the program
    if (!connected() || !write() ||
        !went_well(begin_alone(*connection_, worker_, apart_claim_), "begin a claim")) {
      SPILLWAY_RETURN_IF_ERROR(fatal_);
      return Next::kLater;
    }
    apart_ = Apart::kRuns;
  } else if (ready_.empty()) {
    apart_ = Apart::kNone;
  }
  if (ready_.empty()) {
    const double now = steady_seconds();
    if (in_flight == 0 && !idle_) poll_at_ = 0;  // With its last row: the work may be done.
    idle_ = in_flight == 0;
    if (now < poll_at_) return Next::kLater;
    if (!claim(room)) {
      SPILLWAY_RETURN_IF_ERROR(fatal_);
      poll_at_ = now + options_.poll_seconds;
      if (!options_.until_done || in_flight > 0 || !connected()) return Next::kLater;
      if (!write()) return Next::kLater;  // What is done here may be all that was left.
      const Result<bool> more = has_work(*connection_, worker_);
      if (!went_well(more.status(), "look for work")) return Next::kLater;
      return more.value() ? Next::kLater : Next::kEnd;
    }
    if (apart_ == Apart::kWaits) return next(in_flight, room, row);
  }
  if (ready_.empty()) return Next::kLater;
  *row = take_ready();
  return Next::kRow;
}

void QueueRows::settle(int64_t claim) {
  const auto found = held_.find(claim);
  SPILLWAY_CHECK(found != held_.end());
  Held& held = found->second;
  if (--held.left > 0) return;
  const ClaimId id = {claim, held.claim.generation};
  if (held.fault.empty()) {
    done_.push_back(id);
  } else {
    faulty_.push_back(id);
    fault_ = held.fault;
  }
  held_.erase(found);
}

Status QueueRows::finish(const JournalRow& result) {
  const auto found = places_.find(result.row);
  SPILLWAY_CHECK(found != places_.end());
  const Place place = found->second;
  places_.erase(found);
  const Claim& claim = held_.at(place.claim).claim;
  RowResult row;
  row.claim = claim.id;
  row.generation = claim.generation;
  row.job = claim.job;
  row.job_rows = claim.job_rows;
  row.row = place.row;
  row.failed = result.failed;
  row.prompt_tokens = result.prompt_tokens;
  row.generated_tokens = result.generated_tokens;
  row.line = std::string(result.line);
  results_.push_back(std::move(row));
  ++counts_.finished;
  counts_.failed += result.failed ? 1 : 0;
  counts_.prompt_tokens += result.prompt_tokens;
  counts_.generated_tokens += result.generated_tokens;
  settle(place.claim);
  return {};
}

Status QueueRows::set_aside(int64_t key, const Status& cause) {
  const auto found = places_.find(key);
  SPILLWAY_CHECK(found != places_.end());
  const int64_t claim = found->second.claim;
  places_.erase(found);
  held_.at(claim).fault = std::string(cause.message());
  settle(claim);
  return {};
}

// Rows of jobs that have ended need not run; those in flight end, and nobody takes their results.
void QueueRows::drop_jobs(const std::vector<int64_t>& jobs) {
  if (jobs.empty()) return;
  std::deque<std::pair<int64_t, ClaimedRow>> kept;
  int64_t dropped = 0;
  for (auto& [claim, row] : std::exchange(ready_, {})) {
    const int64_t job = held_.at(claim).claim.job;
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) {
      kept.emplace_back(claim, std::move(row));
    } else {
      ++dropped;
      settle(claim);
    }
  }
  ready_ = std::move(kept);
  if (dropped > 0) {
    log_info(std::to_string(dropped) +
             " rows were dropped: their job was cancelled or has expired.");
  }
}

}  // namespace spillway
