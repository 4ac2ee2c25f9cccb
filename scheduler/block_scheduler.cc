#include "scheduler/block_scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "policy/batching.h"
#include "policy/prefill_target.h"
#include "scheduler/block.h"
#include "scheduler/check_request.h"
#include "scheduler/kv_room.h"
#include "scheduler/sequence.h"
#include "scheduler/stages/joint_sweep.h"
#include "scheduler/sub_block.h"
#include "scheduler/sweep_drafts.h"
#include "scheduler/sweep_prompts.h"
#include "scheduler/token_count.h"
#include "scheduler/waiting_queue.h"

namespace spillway {

namespace {

// Requests that are held in a sweep, at most: each is looked up in the prefix cache.
constexpr int64_t kHeldMax = 1024;

class BlockScheduler final : public Scheduler, private LogitsSink {
 public:
  BlockScheduler(std::unique_ptr<Engine> engine, const SchedulerOptions& options, SweepBound bound,
                 std::unique_ptr<OtherRanks> others)
      : engine_(std::move(engine)),
        others_(std::move(others)),
        options_(options),
        bound_(std::move(bound)),
        limits_{.block_sequences = sub_block_sequences(options.block_sequences_max, others_.get()),
                .prefill_tokens = options.prefill_tokens_max,
                .prefill_target = options.prefill_target,
                .kv_bytes = engine_->kv().total_bytes(),
                .positions_per_token = positions_per_token(engine_->shape())},
        room_(*engine_, options.prefix_cache_bytes, others_.get()),
        target_(options.prefill_target, options.prefill_tokens_max),
        needs_(room_.needs()) {
    stats_.kv_bytes_total = static_cast<int64_t>(engine_->kv().total_bytes());
    stats_.prefill_target = target_.tokens();
    stats_.links = engine_->links();
    if (bound_) stats_.bound_seconds = 0;
    for (int64_t i = 0; i < sub_block_count(options.block_sequences_max, others_.get()); ++i) {
      sub_blocks_.push_back(
          std::make_unique<SubBlock>(room_, waiting_, limits_, [this] { retire(); }));
    }
    thread_ = std::thread([this] { loop(); });
    pthread_setname_np(thread_.native_handle(), "engine");
  }

  ~BlockScheduler() override {
    {
      const std::lock_guard lock(mutex_);
      draining_ = stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  const ModelShape& shape() const override { return engine_->shape(); }
  int64_t queue_max() const override { return options_.queue_max; }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override {
    SPILLWAY_CHECK(sink != nullptr);
    SPILLWAY_RETURN_IF_ERROR(check(request));
    const std::lock_guard lock(mutex_);
    if (draining_) return Status(Code::kCancelled, "the server is shutting down");
    if (!stats_.healthy) return Status(Code::kDeviceLost, "the engine has failed; restart it");
    if (stats_.waiting >= options_.queue_max) {
      return Status(Code::kCapacity, "the queue is full (" + std::to_string(options_.queue_max) +
                                         " requests wait); try again later");
    }
    const RequestId id{++last_id_};
    const double now = steady_seconds();
    const auto its_class = static_cast<size_t>(queue_class(request));
    mailbox_.push_back({id, std::move(request), std::move(sink), now});
    ++unended_[its_class];
    ++stats_.waiting_by_class[its_class];
    ++stats_.waiting;
    if (std::exchange(all_reported_, false)) progress_ = now;
    wake_.notify_one();
    return id;
  }

  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (all_reported_) return;  // No sequence to cancel
    cancelled_.push_back(id);
    wake_.notify_one();
  }

  void drain(double seconds) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    const auto idle = [&] { return all_reported_; };
    const auto wait = std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6));
    if (idle_.wait_for(lock, wait, idle)) return;
    cancel_all_ = true;
    wake_.notify_one();
    idle_.wait(lock, idle);
  }

  SchedulerStats stats() const override {
    const std::lock_guard lock(mutex_);
    SchedulerStats stats = stats_;
    const double now = steady_seconds();
    if (!all_reported_) stats.stalled_seconds = now - progress_;
    if (stats.failures_in_a_row > 0) stats.failed_seconds_ago = now - failed_;
    return stats;
  }

 private:
  struct Arrival {
    RequestId id;
    Request request;
    std::shared_ptr<TokenSink> sink;
    double submitted;
  };

  SequenceKv kv_of(const Request& request) const {
    const KvRule rule = apply(request.kv, options_.kv_rule);
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    KvBudget budget = resolve(rule, prompt, request.max_tokens);
    if (budget.random()) budget.seed = request.sampling.seed;
    return {rule.kind, kv_positions(prompt, request.max_tokens), budget,
            chunks_of(prompt, options_.prefill_tokens_max, may_be_cut(budget) || shares(budget)),
            kv_rows_raised(rule, prompt, request.max_tokens)};
  }

  bool may_be_cut(const KvBudget& budget) const {
    return spillway::may_be_cut(budget.full() && shape().layers_with_window() == 0, limits_);
  }
  // A wrong draft would have dropped a row, or have taken the place of one in a window.
  bool may_draft(const KvBudget& budget) const {
    return budget.full() && shape().layers_with_window() == 0;
  }
  // Whether it may go on behind the cached beginning of another prompt.
  bool shares(const KvBudget& budget) const { return budget.full() && room_.shares(); }

  Status check(const Request& request) const {
    SPILLWAY_RETURN_IF_ERROR(check_request(request, shape()));
    const auto& [rule, positions, budget, chunks, raised] = kv_of(request);
    SPILLWAY_RETURN_IF_ERROR(engine_->kv().check_holds(positions, budget, chunks));
    return others_ == nullptr ? Status() : others_->check_holds(positions, budget, chunks);
  }

  void loop() {
    while (take_mail()) {
      // One that made room for nobody but itself comes back where there is room.
      admit(block().make_room());
      if (!running().empty()) begin_sweep();
      next_turn();
      retire();
    }
  }

  // Sweeps end in the order in which they began, which is that of the turns.
  void next_turn() {
    turn_ = (turn_ + 1) % sub_blocks_.size();
    if (now().under_way) end_sweep();
  }

  // The sub-block whose turn it is. None of its sequences is in a sweep but between begin_sweep()
  // and end_sweep().
  SubBlock& now() { return *sub_blocks_[turn_]; }
  Block& block() { return now().block; }
  const Block::Sequences& running() { return block().running(); }
  bool all_empty() const {
    return std::all_of(sub_blocks_.begin(), sub_blocks_.end(),
                       [](const auto& one) { return one->block.empty(); });
  }

  // Calls each(sequence) for the sequences of all sub-blocks, those set aside among them.
  template <class Each>
  void for_all(const Each& each) const {
    for (const auto& sub_block : sub_blocks_) {
      for (const auto& sequence : sub_block->block.running()) each(*sequence);
      for (const auto& sequence : sub_block->block.aside()) each(*sequence);
    }
  }

  // Moves new requests and cancellations to the engine thread; waits when it has nothing else to
  // do. False at the end of the scheduler's life, when every sequence has been reported.
  bool take_mail() {
    std::unique_lock lock(mutex_);
    const auto something = [&] {
      return !mailbox_.empty() || !all_empty() || !waiting_.empty() || stopping_ || cancel_all_;
    };
    wake_.wait(lock, something);
    if (options_.gather_seconds > 0 && all_empty() && waiting_.empty() && !stopping_) {
      // Sequences that arrive together should share their first pass over the weights.
      wake_.wait_for(lock, std::chrono::duration<double>(options_.gather_seconds), [&] {
        return stopping_ || cancel_all_ || stats_.waiting >= options_.block_sequences_max;
      });
    }
    std::deque<Arrival> arrivals;
    arrivals.swap(mailbox_);
    const bool everything = stopping_ || cancel_all_;
    cancel_all_ = false;
    const bool last = stopping_;
    std::vector<RequestId> ids;
    ids.swap(cancelled_);
    lock.unlock();
    for (Arrival& arrival : arrivals) enqueue_or_refuse(std::move(arrival));
    cancel_sequences(std::move(ids), everything);
    if (!last) return true;
    for (size_t i = 0; i < sub_blocks_.size(); ++i) {
      next_turn();
      retire();
    }
    return false;
  }

  void enqueue_or_refuse(Arrival arrival) {
    const std::shared_ptr<TokenSink> sink = arrival.sink;
    const QueueClass its_class = queue_class(arrival.request);
    try {
      enqueue(std::move(arrival));
    } catch (const std::exception& error) {
      Finish finish;
      finish.reason = FinishReason::kError;
      finish.status = out_of_memory(error);
      count_ended(finish, its_class);
      publish_counts();
      tell(*sink, finish);
    }
  }

  // A sink that runs out of memory affects only itself.
  static void tell(TokenSink& sink, const Finish& finish) {
    try {
      sink.on_finish(finish);
    } catch (const std::exception&) {
    }
  }

  void enqueue(Arrival arrival) {
    const SequenceKv promise = kv_of(arrival.request);
    auto sequence = std::make_unique<Sequence>(arrival.id, std::move(arrival.request),
                                               std::move(arrival.sink), shape(), promise,
                                               options_.sampling_vocabulary, arrival.submitted);
    if (may_draft(promise.budget)) sequence->allow_drafts(options_.draft_tokens);
    waiting_.push(std::move(sequence));
  }

  void cancel_sequences(std::vector<RequestId> ids, bool everything) {
    if (ids.empty() && !everything) return;
    const auto end = [](Sequence& sequence) {
      sequence.finish(FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
    };
    std::sort(ids.begin(), ids.end());  // A client that leaves may cancel thousands.
    // Those in a sweep that is under way are reported at its end.
    for_all([&](Sequence& sequence) {
      if (everything || std::binary_search(ids.begin(), ids.end(), sequence.id())) end(sequence);
    });
    WaitingQueue::Sequences ended;
    if (everything) ended = waiting_.take_all();
    for (const RequestId id : ids) ended.splice(ended.end(), waiting_.take(id));
    for (const auto& sequence : ended) end(*sequence);
    retire(std::move(ended));
  }

  // Puts the next sweep together. `may_return`: those set aside may come back.
  void admit(bool may_return) {
    SweepLimits limits = limits_;
    limits.prefill_target = target_.tokens();
    if (running().empty()) now().owed = 0;
    SweepPrompts prompts(running(), now().owed, limits);
    const uint64_t admissions = admissions_;
    now().limited_by_target = false;
    sequences_now_ = fair_share();
    block().count_needs();
    waiting_.resume();
    Admission joining{.prompts = prompts, .limits = limits, .rests = limits.prefill_tokens};
    for (bool more = true; more;) {
      // One that waits and does not fit holds back the others, so that none starves; it is not
      // waited for where nothing runs.
      const bool next = waiting_.has_next() && !joining.front_waits;
      if (!block().aside().empty() && (next ? block().aside_goes_first() : may_go_on(joining))) {
        more = (may_return || running().empty()) && block().bring_back();
      } else {
        more = next && joining.held < kHeldMax && admit_next(&joining);
      }
    }
    now().owed = prompts.finish();
    // submit() has checked that every sequence fits an empty cache.
    SPILLWAY_CHECK((waiting_.empty() && block().aside().empty()) || !all_empty());
    if (admissions_ > admissions) publish_counts();
  }

  // The most sequences of this sub-block for now: few are spread over all, so that no stage idles.
  int64_t fair_share() const {
    const auto all = static_cast<int64_t>(sub_blocks_.size());
    if (all == 1) return INT64_MAX;
    auto sequences = static_cast<int64_t>(waiting_.size());
    for_all([&](const Sequence&) { ++sequences; });
    return (sequences + all - 1) / all;
  }

  // One pass of admit().
  struct Admission {
    SweepPrompts& prompts;
    const SweepLimits& limits;
    // Tokens that the next sweep has for the rests of prompts whose beginnings go in this one; and
    // whether the next request may be one of these.
    int64_t rests = 0;
    bool may_begin = true;
    int64_t held = 0;
    bool front_waits = false;  // The next waiting sequence does not join this sweep.
  };

  // Whether those set aside may come back though none that waits can begin.
  bool may_go_on(const Admission& joining) { return !joining.front_waits || running().empty(); }

  // Admits the next waiting sequence, or holds it, or sets others aside for it. False: it waits.
  bool admit_next(Admission* joining) {
    Sequence& next = waiting_.front();
    try {
      joining->front_waits = !try_next(next, joining);
    } catch (const std::exception& error) {
      next.finish(FinishReason::kError, out_of_memory(error));
      retire(waiting_.take(next.id()));
    }
    return !joining->front_waits || !block().aside().empty();
  }

  // False: it does not join the sweep. True: something has changed.
  bool try_next(Sequence& next, Admission* joining) {
    if (static_cast<int64_t>(running().size()) >= sequences_now_) return false;
    if (block().keeps_place(next) || (block().full() && !block().may_make_way(next))) return false;
    const KvRoom::Offer offer = room_.offer(next, joining->may_begin ? joining->rests : 0);
    if (offer.better_later && !running().empty()) {
      waiting_.hold();
      ++joining->held;
      return true;
    }
    // All but one can be set aside, however long they get.
    if (needs_.grow() && !block().empty() &&
        block().promised_bytes() + needs_.aside_bytes(next) > room_.promised_max()) {
      return false;
    }
    const WaitingRequests request = request_of(next, offer);
    const auto sweep_of = [&](int64_t sequences, uint64_t bytes_less) {
      const uint64_t bytes =
          needs_.grow() ? block().likely_bytes() + room_.prefix_used_bytes() : room_.used_bytes();
      return joining->prompts.contents(sequences, bytes - std::min(bytes, bytes_less));
    };
    const SweepContents sweep = sweep_of(static_cast<int64_t>(running().size()), 0);
    const AdmittedRequests joins = requests_admitted(request, sweep, joining->limits);
    const Block::Joins would_join = [&](int64_t sequences, uint64_t bytes_less) {
      return requests_admitted(request, sweep_of(sequences, bytes_less), joining->limits).count() >
             0;
    };
    if (joins.count() == 0 && block().may_make_way(next) && block().make_way(next, would_join)) {
      return true;
    }
    if (joins.count() == 0 || !room_.admit(next, offer, admissions_ + 1, steady_seconds()).ok()) {
      // Without a beginning for others it takes less, and one that shares nothing may lie on every
      // tier. The free bytes may be fragmented.
      const bool alone = running().empty() && offer.begins == 0 && !next.alone();
      if (alone) next.stay_alone();
      joining->may_begin = false;
      if (offer.begins > 0 || alone) return true;
      if (joins.count() > 0) return make_way_by_one(next);
      now().limited_by_target = joins_but_for_target(request, sweep, joining->limits);
      return false;
    }
    block().enter_next();
    ++admissions_;
    joining->may_begin = true;
    if (offer.begins > 0) joining->rests -= next.prompt_tokens() - offer.begins;
    joining->prompts.join(next, joins.in_chunks);
    return true;
  }

  // For one that joins by what all are likely to need, where there is no room now.
  bool make_way_by_one(const Sequence& next) {
    const auto fewer = [here = static_cast<int64_t>(running().size())](
                           int64_t sequences, uint64_t) { return sequences < here; };
    if (block().may_make_way(next) && block().make_way(next, fewer)) return true;
    block().note_no_room(next);
    return false;
  }

  WaitingRequests request_of(const Sequence& next, const KvRoom::Offer& offer) const {
    const int64_t left = offer.begins > 0 ? offer.begins : next.prompt_tokens() - offer.cached;
    const bool longer = goes_in_chunks(left, limits_.prefill_tokens);
    return {1, left, offer.bytes, !longer && may_be_cut(next.promise().budget)};
  }

  // Puts the sub-block's sweep together, and sends it to the stages before this one, if any.
  void begin_sweep() {
    SubBlock& sub_block = now();
    sub_block.began = steady_seconds();
    if (options_.draft_tokens > 0) {
      const EngineOptions& engine = engine_->options();
      draft_sweep(running(), std::min(engine.draft_rows_max, engine.sweep_tokens_max));
    }
    sub_block.fill_items();
    if (others_) sub_block.start = try_sweep([&] { return others_->start(now().items); });
    sub_block.under_way = true;
  }

  // Runs the sweep, or what is left of it, and takes its tokens.
  void end_sweep() {
    SubBlock& sub_block = now();
    sub_block.under_way = false;
    generated_ = 0;
    Status status = std::exchange(sub_block.start, Status());
    if (status.ok())
      status =
          try_sweep([&] { return finish_sweep(*engine_, others_.get(), sub_block.items, *this); });
    if (status.code() == Code::kDeviceLost) {
      // Marks the scheduler unhealthy before reporting, so that retries are rejected.
      const std::lock_guard lock(mutex_);
      stats_.healthy = false;
    }
    int64_t stopped = 0;
    for (const auto& sequence : running()) {
      if (!status.ok()) sequence->finish(FinishReason::kError, status);
      if (status.ok()) count_draft(*sequence, &drafts_);
      sequence->end_sweep();
      room_.end_sweep(*sequence);
      stopped += sequence->finished() && sequence->ending().reason == FinishReason::kStop ? 1 : 0;
    }
    // Of stages it is not known here how long each has waited.
    if (status.ok() && options_.corrects_target && sub_blocks_.size() == 1) {
      target_.correct(measured(engine_->last_sweep(), sub_block.limited_by_target));
    }
    needs_.count(static_cast<int64_t>(generated_), stopped);
    // Sweeps of several sub-blocks overlap: each counts for the time since the last one's end.
    const double began = std::max(sub_block.began, last_end_);
    SweepCount counted{nullptr, began,           0, sub_block.prompt_tokens, generated_,
                       {},      engine_->links()};
    if (status.ok()) counted.sweep = &engine_->last_sweep();
    if (status.ok() && bound_) counted.bound_seconds = bound_(*counted.sweep);
    const std::lock_guard lock(mutex_);
    counted.ended = progress_ = last_end_ = steady_seconds();
    if (!status.ok()) failed_ = progress_;
    count(counted, &stats_);
    stats_.prefill_target = target_.tokens();
    stats_.token_gaps = gaps_;
    stats_.drafts = drafts_;
  }

  void on_logits(size_t item, int64_t token, std::span<float> logits) override {
    const TokenCount count(*running()[item], &generated_, &gaps_);
    running()[item]->take_logits(token, logits, count.now());
  }

  void on_sampled(size_t item, int64_t token, int32_t index) override {
    const TokenCount count(*running()[item], &generated_, &gaps_);
    running()[item]->take_sampled(token, index, count.now());
  }

  void on_failure(size_t item, const Status& status) override {
    running()[item]->finish(FinishReason::kError, status);
  }

  // Of those that have not finished.
  void publish_counts() {
    ClassCounts running{};
    uint64_t set_aside = 0;
    for_all([&](const Sequence& sequence) {
      running[static_cast<size_t>(sequence.queue_class())] += !sequence.finished();
    });
    for (const auto& sub_block : sub_blocks_) set_aside += sub_block->block.times_set_aside();
    const std::lock_guard lock(mutex_);
    stats_.running_by_class = running;
    stats_.running = sum(running);
    stats_.set_aside = set_aside;
    stats_.waiting = static_cast<int64_t>(waiting_.size() + mailbox_.size());
    stats_.waiting_by_class = difference(unended_, running);
    stats_.kv_bytes_used = static_cast<int64_t>(room_.used_bytes());
    stats_.prefix_bytes = static_cast<int64_t>(room_.prefix_bytes());
    stats_.prefix_queries = room_.prefix_queries();
    stats_.prefix_hits = room_.prefix_hits();
  }

  void count_ended(const Finish& finish, QueueClass its_class) {
    const std::lock_guard lock(mutex_);
    --unended_[static_cast<size_t>(its_class)];
    stats_.kv.add(finish.usage.kv);
    ++stats_.ended[static_cast<size_t>(finish.reason)];
    stats_.times.add(finish);
  }

  // Frees the memory of finished sequences, then reports them: a reported ending is already in the
  // statistics, and drain() returns after the last report. Allocates nothing, so that it works when
  // memory has run out.
  // Of the sub-block whose turn it is. `waiting`: finished sequences that have not run.
  void retire(WaitingQueue::Sequences waiting = {}) {
    const Block::Ended ended = block().find_ended();
    const auto settle = [&](const std::unique_ptr<Sequence>& sequence) {
      const Finish& finish = sequence->sum_up(engine_->kv(), steady_seconds(), others_.get());
      count_ended(finish, sequence->queue_class());
      room_.release(*sequence);
    };
    std::for_each(ended.running.begin(), ended.running.end(), settle);
    std::for_each(ended.aside.begin(), ended.aside.end(), settle);
    std::for_each(waiting.begin(), waiting.end(), settle);
    publish_counts();
    const auto report = [](const std::unique_ptr<Sequence>& sequence) {
      tell(sequence->sink(), sequence->ending());
    };
    std::for_each(ended.running.begin(), ended.running.end(), report);
    std::for_each(ended.aside.begin(), ended.aside.end(), report);
    std::for_each(waiting.begin(), waiting.end(), report);
    block().remove(ended);
    waiting.clear();
    const std::lock_guard lock(mutex_);
    all_reported_ = all_empty() && stats_.waiting == 0;
    if (all_reported_) idle_.notify_all();
  }

  std::unique_ptr<Engine> engine_;
  const std::unique_ptr<OtherRanks> others_;  // Null: the engine has the whole model
  const SchedulerOptions options_;
  const SweepBound bound_;    // May be empty
  const SweepLimits limits_;  // Its target is the planned one.
  KvRoom room_;               // Outlives the sequences; the engine thread's

  mutable std::mutex mutex_;  // Guards the members down to the blank line.
  std::condition_variable wake_, idle_;
  std::deque<Arrival> mailbox_;
  ClassCounts unended_{};  // Accepted, and not counted as ended
  std::vector<RequestId> cancelled_;
  uint64_t last_id_ = 0;
  bool draining_ = false, stopping_ = false, cancel_all_ = false;
  bool all_reported_ = true;  // No sequence waits, runs or is being reported.
  double progress_ = 0;       // Time when a sweep ended or work arrived last
  double failed_ = 0;         // Time when a sweep failed last
  SchedulerStats stats_;

  // Engine thread only.
  WaitingQueue waiting_;
  std::vector<std::unique_ptr<SubBlock>> sub_blocks_;  // As many as stages, which take turns
  size_t turn_ = 0;
  int64_t sequences_now_ = 0;  // fair_share() in this turn
  uint64_t admissions_ = 0;
  double last_end_ = 0;  // Of a sweep
  uint64_t generated_ = 0;
  Histogram gaps_{kTokenBounds};
  DraftCounts drafts_;
  PrefillTarget target_;
  KvNeeds& needs_;

  std::thread thread_;
};

}  // namespace

int64_t sweep_tokens_max(const ModelShape& shape, const SchedulerOptions& options) {
  const int64_t prefill = options.prefill_tokens_max;
  // Beside a chunk of at least a quarter there may be a whole prompt of all of them.
  const bool chunks = options.prefill_target > 0 || goes_in_chunks(shape.positions, prefill);
  const int64_t chunk = chunks ? (prefill + 3) / 4 : 0;
  return prefill + chunk + options.block_sequences_max;
}

std::unique_ptr<Scheduler> start_scheduler(std::unique_ptr<Engine> engine,
                                           const SchedulerOptions& options, SweepBound bound,
                                           std::unique_ptr<OtherRanks> others) {
  return std::make_unique<BlockScheduler>(std::move(engine), options, std::move(bound),
                                          std::move(others));
}

}  // namespace spillway
