#include "policy/sweep_schedule.h"

#include <algorithm>
#include <optional>

#include "kernels/base/check.h"

namespace spillway {

namespace {

// Sequences admitted together from one group, so that they stay alike.
struct Cohort {
  int64_t count;
  int64_t rows;             // Positions of each sequence
  int64_t left;             // Tokens still to be generated
  const KvReservation* kv;  // Of each sequence
};

// A sequence whose prompt goes in chunks.
struct LongPrompt {
  Cohort cohort;  // What it is when the prompt has ended
  int64_t prompt, shared;
  int64_t done = shared;  // Tokens of it that have been computed

  int64_t left() const { return prompt - done; }
  int64_t computed() const { return prompt - shared; }
};

class Planner {
 public:
  Planner(std::span<const RequestGroup> groups, std::span<const KvReservation> reservations,
          const SweepLimits& limits)
      : groups_(groups), reservations_(reservations), limits_(limits) {
    SPILLWAY_CHECK(groups.size() == reservations.size());
    if (!groups.empty()) waiting_ = groups.front().count;
  }

  std::vector<PlannedSweeps> run() {
    while (group_ < groups_.size() || !running_.empty() || long_) {
      PlannedSweeps sweeps;
      const size_t before = running_.size();
      if (sequences_ == 0) owed_ = 0;
      const bool in_debt = owed_ > 0 && group_ < groups_.size();
      // Sequences that decode in this sweep were running before it.
      for (const Cohort& cohort : running_) count_decoding(cohort, &sweeps);
      add_prompts(&sweeps.work);
      if (sweeps.work.prompt_tokens == 0 && !in_debt) sweeps.count = alike();
      advance(before, sweeps.count);
      found_.push_back(sweeps);
    }
    return std::move(found_);
  }

 private:
  static void count_decoding(const Cohort& cohort, PlannedSweeps* sweeps) {
    sweeps->work.decoding += cohort.count;
    // The step's own row is attended to, too.
    const auto count = static_cast<double>(cohort.count);
    sweeps->work.cached_rows += count * cohort.kv->attended(cohort.rows);
    sweeps->cached_rows_step +=
        count * (cohort.kv->kept(cohort.rows + 1) - cohort.kv->kept(cohort.rows));
  }

  // Puts the sweep's prompts together.
  void add_prompts(SweepWork* work) {
    SweepContents sweep{.sequences = sequences_, .kv_bytes = reserved_, .owed = owed_};
    if (long_) {
      const int64_t tokens = next_chunk(sweep.owed);
      if (tokens == long_->left()) {
        sweep.prompt_tokens += tokens;
        add_chunk(tokens, work);
      } else {
        sweep.prompt_in_chunks = long_->computed();
      }
    }
    while (group_ < groups_.size()) {
      if (!admit(&sweep, work)) break;
    }
    if (long_) {
      const int64_t tokens = next_chunk(sweep.owed + sweep.prompt_tokens);
      sweep.prompt_tokens += tokens;
      add_chunk(tokens, work);
    }
    owed_ = owed_after(sweep, limits_);
  }

  // Admits requests of the current group; false: some wait.
  bool admit(SweepContents* sweep, SweepWork* work) {
    const RequestGroup& group = groups_[group_];
    const KvReservation& kv = reservations_[group_];
    SPILLWAY_CHECK(kv.bytes <= limits_.kv_bytes);
    const AdmittedRequests admitted = requests_admitted(
        {waiting_, group.computed_tokens(), kv.bytes, may_be_cut(kv.keeps_all_rows, limits_)},
        *sweep, limits_);
    if (admitted.whole > 0) {
      const int64_t count = admitted.whole;
      const auto each = static_cast<double>(count);
      const int64_t tokens = group.computed_tokens(), shared = group.shared_tokens;
      work->prompts += count;
      work->prompt_tokens += count * tokens;
      work->prompt_rows +=
          each * std::min<double>(kv.kept(group.prompt_tokens), static_cast<double>(tokens));
      work->prompt_pairs += each * pairs(kv, shared, tokens);
      work->cached_rows += each * static_cast<double>(shared);
      sweep->prompt_tokens += count * tokens;
      running_.push_back({count, group.prompt_tokens, group.new_tokens, &kv});
    }
    if (admitted.in_chunks) {
      long_ = LongPrompt{{1, group.prompt_tokens, group.new_tokens, &kv},
                         group.prompt_tokens,
                         group.shared_tokens};
      sweep->prompt_in_chunks = group.computed_tokens();
    }
    sequences_ += admitted.count();
    reserved_ += static_cast<uint64_t>(admitted.count()) * kv.bytes;
    sweep->sequences = sequences_;
    sweep->kv_bytes = reserved_;
    waiting_ -= admitted.count();
    return admitted.count() > 0 && next_group();
  }

  // Goes on to the next group when none of this one waits any more. False: some wait.
  bool next_group() {
    if (waiting_ > 0) return false;
    if (++group_ < groups_.size()) waiting_ = groups_[group_].count;
    return true;
  }

  // Tokens of the long prompt's next chunk beside `taken` others.
  int64_t next_chunk(int64_t taken) const {
    return chunk_tokens(long_->done, long_->left(), taken, limits_);
  }

  // The long prompt's next chunk; at its end the sequence decodes like the others.
  void add_chunk(int64_t tokens, SweepWork* work) {
    const int64_t done = long_->done;
    work->prompt_tokens += tokens;
    const KvReservation& kv = *long_->cohort.kv;
    work->prompt_rows += static_cast<double>(tokens);
    work->prompt_pairs += pairs(kv, done, tokens);
    work->cached_rows += kv.mean(done, std::min(done, kv.window - 1));
    long_->done += tokens;
    if (long_->left() > 0) {
      ++work->prompts_unfinished;
      return;
    }
    ++work->prompts;
    running_.push_back(long_->cohort);
    long_.reset();
  }

  static double pairs(const KvReservation& kv, int64_t position, int64_t tokens) {
    return kv.mean(prompt_pairs(position, tokens, 0), prompt_pairs(position, tokens, kv.window));
  }

  // The number of sweeps until something changes: a cohort ends or reaches the rows it keeps.
  int64_t alike() const {
    int64_t count = running_.front().left;
    for (const Cohort& cohort : running_) {
      count = std::min(count, cohort.left);
      for (const int64_t most : {cohort.kv->rows_max, cohort.kv->window_rows_max}) {
        if (cohort.rows < most) count = std::min(count, most - cohort.rows);
      }
    }
    return count;
  }

  // Advances the first `decoding` cohorts by `sweeps` steps; the others were prefilled, which gives
  // a token without a row.
  void advance(size_t decoding, int64_t sweeps) {
    for (size_t i = 0; i < running_.size(); ++i) {
      Cohort& cohort = running_[i];
      cohort.left -= sweeps;
      if (i < decoding) cohort.rows += sweeps;
    }
    std::erase_if(running_, [&](const Cohort& cohort) {
      if (cohort.left > 0) return false;
      sequences_ -= cohort.count;
      reserved_ -= static_cast<uint64_t>(cohort.count) * cohort.kv->bytes;
      return true;
    });
  }

  const std::span<const RequestGroup> groups_;
  const std::span<const KvReservation> reservations_;
  const SweepLimits limits_;
  std::vector<Cohort> running_;
  std::optional<LongPrompt> long_;
  std::vector<PlannedSweeps> found_;
  size_t group_ = 0;
  int64_t waiting_ = 0;  // Requests of groups_[group_] not yet admitted
  int64_t sequences_ = 0;
  uint64_t reserved_ = 0;
  int64_t owed_ = 0;  // SweepContents::owed of the next sweep
};

}  // namespace

std::vector<PlannedSweeps> plan_sweeps(std::span<const RequestGroup> groups,
                                       std::span<const KvReservation> reservations,
                                       const SweepLimits& limits) {
  return Planner(groups, reservations, limits).run();
}

}  // namespace spillway
