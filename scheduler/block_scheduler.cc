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
#include "scheduler/check_request.h"
#include "scheduler/kv_room.h"
#include "scheduler/sequence.h"
#include "scheduler/token_count.h"
#include "scheduler/waiting_queue.h"

namespace spillway {

namespace {

// Requests that are held in a sweep, at most: each is looked up in the prefix cache.
constexpr int64_t kHeldMax = 1024;

class BlockScheduler final : public Scheduler, private LogitsSink {
 public:
  BlockScheduler(std::unique_ptr<Engine> engine, const SchedulerOptions& options, SweepBound bound)
      : engine_(std::move(engine)),
        options_(options),
        bound_(std::move(bound)),
        limits_{.block_sequences = options.block_sequences_max,
                .prefill_tokens = options.prefill_tokens_max,
                .prefill_target = options.prefill_target,
                .kv_bytes = engine_->kv().total_bytes(),
                .positions_per_token = positions_per_token(engine_->shape())},
        room_(*engine_, options.prefix_cache_bytes),
        target_(options.prefill_target, options.prefill_tokens_max),
        needs_(room_.needs()) {
    stats_.kv_bytes_total = static_cast<int64_t>(engine_->kv().total_bytes());
    stats_.prefill_target = target_.tokens();
    stats_.links = engine_->links();
    if (bound_) stats_.bound_seconds = 0;
    running_.reserve(static_cast<size_t>(options_.block_sequences_max));
    aside_.reserve(static_cast<size_t>(options_.block_sequences_max));
    items_.reserve(static_cast<size_t>(options_.block_sequences_max));
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
  // Whether it may go on behind the cached beginning of another prompt.
  bool shares(const KvBudget& budget) const { return budget.full() && room_.shares(); }

  Status check(const Request& request) const {
    SPILLWAY_RETURN_IF_ERROR(check_request(request, shape()));
    const SequenceKv promise = kv_of(request);
    return engine_->kv().check_holds(promise.positions, promise.budget, promise.chunks);
  }

  void loop() {
    while (take_mail()) {
      // One that made room for nobody but itself comes back where there is room.
      if (make_room() || running_.empty()) bring_back();
      admit();
      if (!running_.empty()) sweep();
      retire();
    }
  }

  // Moves new requests and cancellations to the engine thread; waits when it has nothing else to
  // do. False at the end of the scheduler's life, when every sequence has been reported.
  bool take_mail() {
    std::unique_lock lock(mutex_);
    const auto something = [&] {
      return !mailbox_.empty() || !running_.empty() || !aside_.empty() || !waiting_.empty() ||
             stopping_ || cancel_all_;
    };
    wake_.wait(lock, something);
    if (options_.gather_seconds > 0 && running_.empty() && waiting_.empty() && !stopping_) {
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
    retire();
    return false;
  }

  // The status for an allocation that fails outside of a sweep: it ends requests, not the process.
  static Status out_of_memory(const std::exception& error) {
    return {Code::kCapacity, std::string("the request could not be started: ") + error.what()};
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

  // A sink that runs out of memory in on_finish() affects only itself.
  static void tell(TokenSink& sink, const Finish& finish) {
    try {
      sink.on_finish(finish);
    } catch (const std::exception&) {
    }
  }

  void enqueue(Arrival arrival) {
    const SequenceKv promise = kv_of(arrival.request);
    waiting_.push(std::make_unique<Sequence>(arrival.id, std::move(arrival.request),
                                             std::move(arrival.sink), shape(), promise,
                                             options_.sampling_vocabulary, arrival.submitted));
  }

  void cancel_sequences(std::vector<RequestId> ids, bool everything) {
    if (ids.empty() && !everything) return;
    const auto end = [](Sequence& sequence) {
      sequence.finish(FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
    };
    std::sort(ids.begin(), ids.end());  // A client that leaves may cancel thousands.
    for (const auto* some : {&running_, &aside_}) {
      for (const auto& sequence : *some) {
        if (everything || std::binary_search(ids.begin(), ids.end(), sequence->id())) {
          end(*sequence);
        }
      }
    }
    WaitingQueue::Sequences ended;
    if (everything) ended = waiting_.take_all();
    for (const RequestId id : ids) ended.splice(ended.end(), waiting_.take(id));
    for (const auto& sequence : ended) end(*sequence);
    retire(std::move(ended));
  }

  // Gives every running sequence the blocks for its next token and the one after, which is read
  // ahead. Where there are not enough, the youngest sequences are set aside for the older ones.
  // False: some were.
  bool make_room() {
    if (!needs_.grow()) return true;
    bool enough = true;
    for (size_t i = 0; i < running_.size();) {
      Sequence& sequence = *running_[i];
      const int64_t most = sequence.kv()->rows;
      const auto grow = [&](int64_t more) {
        try {
          return room_.grow(sequence, std::min(most, sequence.cached() + more));
        } catch (const std::exception& error) {
          sequence.finish(FinishReason::kError, out_of_memory(error));
          return true;
        }
      };
      if (!needs_.grows(sequence) || sequence.prefilling() || grow(2) || grow(1)) {
        ++i;
        continue;
      }
      // It is itself the youngest that can go, where all behind it are in their prompts.
      size_t youngest = running_.size() - 1;
      while (youngest > i &&
             (!needs_.grows(*running_[youngest]) || running_[youngest]->prefilling())) {
        --youngest;
      }
      set_aside(youngest);
      enough = false;
    }
    retire();
    return enough;
  }

  void set_aside(size_t index) {
    const auto at = running_.begin() + static_cast<ptrdiff_t>(index);
    Sequence& sequence = **at;
    const Status status = room_.set_aside(sequence);
    // An error is this sequence's: there is no room for it where it is.
    if (!status.ok()) sequence.finish(FinishReason::kError, status);
    const auto place = std::lower_bound(aside_.begin(), aside_.end(), *at, older);
    aside_.insert(place, std::move(*at));
    running_.erase(at);
    if (!status.ok()) return retire();
    const std::lock_guard lock(mutex_);
    ++stats_.set_aside;
  }

  static bool older(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
    return a->admission() < b->admission();
  }

  // Sequences that were set aside go on before any other begins, the oldest first, as soon as there
  // is room for what they will likely need.
  void bring_back() {
    while (!aside_.empty() && static_cast<int64_t>(running_.size()) < limits_.block_sequences) {
      Sequence& oldest = *aside_.front();
      uint64_t bytes = needs_.likely_bytes(oldest) + room_.prefix_used_bytes();
      for (const auto& sequence : running_) bytes += needs_.likely_bytes(*sequence);
      if (!running_.empty() && bytes > limits_.kv_bytes) return;
      Status status;
      try {
        status = room_.bring_back(oldest);
      } catch (const std::exception& error) {
        status = out_of_memory(error);
      }
      if (status.code() == Code::kCapacity && !running_.empty()) return;
      if (!status.ok()) oldest.finish(FinishReason::kError, status);
      const auto place = std::lower_bound(running_.begin(), running_.end(), aside_.front(), older);
      running_.insert(place, std::move(aside_.front()));
      aside_.erase(aside_.begin());
      retire();
    }
  }

  void admit() {
    SweepLimits limits = limits_;
    limits.prefill_target = target_.tokens();
    if (running_.empty()) owed_ = 0;
    SweepContents sweep{.sequences = static_cast<int64_t>(running_.size()), .owed = owed_};
    Sequence* chunked = nullptr;  // The one whose prompt goes on after this sweep
    for (const auto& sequence : running_) {
      if (!sequence->in_chunks() || sequence->beginning() == nullptr) continue;
      // Behind the beginning that it has computed for others, the rest of a prompt goes at once.
      sequence->set_chunk(sequence->prompt_left());
      sweep.prompt_tokens += sequence->prompt_left();
    }
    for (const auto& sequence : running_) {
      if (!sequence->in_chunks() || sequence->beginning() != nullptr) continue;
      const int64_t left = sequence->prompt_left();
      const int64_t tokens = chunk_tokens(sequence->prompt_tokens() - left, left,
                                          sweep.owed + sweep.prompt_tokens, limits);
      sequence->set_chunk(tokens);
      if (tokens < left) {
        chunked = sequence.get();
        sweep.prompt_in_chunks = chunked->prompt_computed();
      } else {
        sweep.prompt_tokens += tokens;
      }
    }
    bool admitted = false;
    limited_by_target_ = false;
    uint64_t expected = 0, promised = 0;  // By each beside what others share
    if (needs_.grow()) {
      for (const auto& sequence : running_) {
        expected += needs_.likely_bytes(*sequence);
        promised += needs_.aside_bytes(*sequence);
      }
    }
    // Tokens that the next sweep has for the rests of prompts whose beginnings go in this one; and
    // whether the next request may be one of these.
    int64_t rests = limits.prefill_tokens, held = 0;
    bool may_begin = true;
    waiting_.resume();
    while (waiting_.has_next() && aside_.empty() && held < kHeldMax &&
           static_cast<int64_t>(running_.size()) < limits.block_sequences) {
      Sequence& next = waiting_.front();
      try {
        const KvRoom::Offer offer = room_.offer(next, may_begin ? rests : 0);
        if (offer.better_later && !running_.empty()) {
          waiting_.hold();
          ++held;
          continue;
        }
        const WaitingRequests request = request_of(next, offer);
        sweep.sequences = static_cast<int64_t>(running_.size());
        sweep.kv_bytes = needs_.grow() ? expected + room_.prefix_used_bytes() : room_.used_bytes();
        // All but one can be set aside, however long they get.
        if (needs_.grow() && !running_.empty() &&
            promised + needs_.aside_bytes(next) > room_.promised_max())
          break;
        const AdmittedRequests joins = requests_admitted(request, sweep, limits);
        const bool fits =
            joins.count() > 0 && room_.admit(next, offer, admissions_ + 1, steady_seconds()).ok();
        if (!fits) {
          // Without a beginning for others it takes less, and one that shares nothing may lie on
          // every tier. The free bytes may be fragmented.
          const bool alone = running_.empty() && offer.begins == 0 && !next.alone();
          if (offer.begins == 0 && !alone) {
            limited_by_target_ = joins.count() == 0 && joins_but_for_target(request, sweep, limits);
            break;
          }
          may_begin = false;
          if (alone) next.stay_alone();
          continue;
        }
        ++admissions_;
        admitted = true;
        may_begin = true;
        expected += needs_.likely_bytes(next);
        promised += needs_.aside_bytes(next);
        if (offer.begins > 0) rests -= next.prompt_tokens() - offer.begins;
        if (joins.in_chunks) {
          chunked = &next;
          sweep.prompt_in_chunks = next.prompt_computed();
        } else {
          if (next.found_cached() > 0) next.set_chunk(next.prompt_left());
          sweep.prompt_tokens += static_cast<int64_t>(next.next_tokens().size());
        }
        running_.push_back(waiting_.pop());
      } catch (const std::exception& error) {
        next.finish(FinishReason::kError, out_of_memory(error));
        retire(waiting_.take(next.id()));
      }
    }
    if (chunked != nullptr) {
      const int64_t left = chunked->prompt_left();
      const int64_t tokens = chunk_tokens(chunked->prompt_tokens() - left, left,
                                          sweep.owed + sweep.prompt_tokens, limits);
      chunked->set_chunk(tokens);
      sweep.prompt_tokens += tokens;
    }
    owed_ = owed_after(sweep, limits);
    // submit() has checked that every sequence fits an empty cache.
    SPILLWAY_CHECK((waiting_.empty() && aside_.empty()) || !running_.empty());
    if (admitted) publish_counts();
  }

  WaitingRequests request_of(const Sequence& next, const KvRoom::Offer& offer) const {
    const int64_t left = offer.begins > 0 ? offer.begins : next.prompt_tokens() - offer.cached;
    const bool longer = goes_in_chunks(left, limits_.prefill_tokens);
    return {1, left, offer.bytes, !longer && may_be_cut(next.promise().budget)};
  }

  void sweep() {
    const double start = steady_seconds();
    items_.clear();
    uint64_t prompt_tokens = 0;
    for (const auto& sequence : running_) {
      const std::span<const int32_t> tokens = sequence->next_tokens();
      items_.push_back({.tokens = tokens,
                        .position = sequence->next_position(),
                        .prompt = sequence->prefilling() ? sequence->prompt_tokens() : 0,
                        .kv = sequence->kv(),
                        .all_logits = sequence->wants_all_logits(),
                        .no_logits = !sequence->wants_all_logits() && !sequence->ends_prompt(),
                        .sample = sequence->sample_rule()});
      if (sequence->prefilling()) prompt_tokens += tokens.size();
    }
    generated_ = 0;
    const Status status = run_engine();
    if (status.code() == Code::kDeviceLost) {
      // Marks the scheduler unhealthy before reporting, so that retries are rejected.
      const std::lock_guard lock(mutex_);
      stats_.healthy = false;
    }
    int64_t stopped = 0;
    for (const auto& sequence : running_) {
      if (!status.ok()) sequence->finish(FinishReason::kError, status);
      sequence->end_sweep();
      room_.end_sweep(*sequence);
      stopped += sequence->finished() && sequence->ending().reason == FinishReason::kStop ? 1 : 0;
    }
    if (status.ok() && options_.corrects_target) {
      target_.correct(measured(engine_->last_sweep(), limited_by_target_));
    }
    needs_.count(static_cast<int64_t>(generated_), stopped);
    SweepCount counted{nullptr, start, 0, prompt_tokens, generated_, {}, engine_->links()};
    if (status.ok()) counted.sweep = &engine_->last_sweep();
    if (status.ok() && bound_) counted.bound_seconds = bound_(*counted.sweep);
    const std::lock_guard lock(mutex_);
    counted.ended = progress_ = steady_seconds();
    if (!status.ok()) failed_ = progress_;
    count(counted, &stats_);
    stats_.prefill_target = target_.tokens();
    stats_.token_gaps = gaps_;
  }

  // Runs the sweep; running out of memory in it ends its sequences, not the process.
  Status run_engine() {
    try {
      return engine_->run(items_, *this);
    } catch (const std::exception& error) {
      return {Code::kCapacity, std::string("the sweep failed: ") + error.what()};
    }
  }

  void on_logits(size_t item, int64_t token, std::span<float> logits) override {
    const TokenCount count(*running_[item], &generated_, &gaps_);
    running_[item]->take_logits(token, logits, count.now());
  }

  void on_sampled(size_t item, int64_t, int32_t index) override {
    const TokenCount count(*running_[item], &generated_, &gaps_);
    running_[item]->take_sampled(index, count.now());
  }

  void on_failure(size_t item, const Status& status) override {
    running_[item]->finish(FinishReason::kError, status);
  }

  // Of those that have not finished.
  void publish_counts() {
    ClassCounts running{};
    for (const auto* some : {&running_, &aside_}) {
      for (const auto& s : *some) running[static_cast<size_t>(s->queue_class())] += !s->finished();
    }
    const std::lock_guard lock(mutex_);
    stats_.running_by_class = running;
    stats_.running = sum(running);
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
  // `waiting`: finished sequences that have not run.
  void retire(WaitingQueue::Sequences waiting = {}) {
    const auto lives = [](const std::unique_ptr<Sequence>& s) { return !s->finished(); };
    const auto running = std::stable_partition(running_.begin(), running_.end(), lives);
    const auto aside = std::stable_partition(aside_.begin(), aside_.end(), lives);
    const auto settle = [&](const std::unique_ptr<Sequence>& sequence) {
      count_ended(sequence->sum_up(engine_->kv(), steady_seconds()), sequence->queue_class());
      room_.release(*sequence);
    };
    std::for_each(running, running_.end(), settle);
    std::for_each(aside, aside_.end(), settle);
    std::for_each(waiting.begin(), waiting.end(), settle);
    publish_counts();
    const auto report = [](const std::unique_ptr<Sequence>& sequence) {
      tell(sequence->sink(), sequence->ending());
    };
    std::for_each(running, running_.end(), report);
    std::for_each(aside, aside_.end(), report);
    std::for_each(waiting.begin(), waiting.end(), report);
    running_.erase(running, running_.end());
    aside_.erase(aside, aside_.end());
    waiting.clear();
    const std::lock_guard lock(mutex_);
    all_reported_ = stats_.running == 0 && stats_.waiting == 0;
    if (all_reported_) idle_.notify_all();
  }

  std::unique_ptr<Engine> engine_;
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
  std::vector<std::unique_ptr<Sequence>> running_;  // In the order of their admission
  std::vector<std::unique_ptr<Sequence>> aside_;    // Admitted, and set aside: likewise
  uint64_t admissions_ = 0;
  std::vector<SweepItem> items_;
  uint64_t generated_ = 0;
  Histogram gaps_{kTokenBounds};
  PrefillTarget target_;
  int64_t owed_ = 0;                // SweepContents::owed of the next sweep
  bool limited_by_target_ = false;  // The current sweep
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
                                           const SchedulerOptions& options, SweepBound bound) {
  return std::make_unique<BlockScheduler>(std::move(engine), options, std::move(bound));
}

}  // namespace spillway
