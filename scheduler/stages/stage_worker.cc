#include "scheduler/stages/stage_worker.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "scheduler/stages/stage_messages.h"

namespace spillway {
namespace {

class StageWorker final : private LogitsSink, private RankPeers {
 public:
  StageWorker(RankMail& mail, Engine& engine, OtherRanks* followers)
      : mail_(mail),
        engine_(engine),
        followers_(followers),
        ranks_(followers == nullptr ? engine.options().ranks : nullptr),
        next_(ranks_ != nullptr ? 0 : next_rank(mail.rank(), mail.size())) {}

  ~StageWorker() {
    for (auto& [id, kv] : caches_) release(std::move(kv));
  }

  Status run() {
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail_.receive());
      SPILLWAY_ASSIGN_OR_RETURN(const StageMessage kind, kind_of(message.bytes));
      if (kind == StageMessage::kEnd) return {};
      if (kind == StageMessage::kLogits) continue;  // Of a sweep that has failed here
      SPILLWAY_RETURN_IF_ERROR(hand_on(message.bytes));
      if (ended_) return {};
    }
  }

 private:
  // Runs a sweep and posts what comes out of it, which is at least a status.
  Status hand_on(std::span<const std::byte> bytes) {
    SPILLWAY_ASSIGN_OR_RETURN(ReceivedSweep received, decode_sweep(bytes));
    StageSweep& sweep = received.sweep;
    sweep_ = &sweep;
    told_.clear();
    const Status changed = change_caches(sweep);
    if (sweep.status.ok()) sweep.status = changed;
    std::vector<std::byte> message;
    if (sweep.status.ok()) {
      try {
        const size_t rows = ranks_ != nullptr ? 0 : sweep.tokens.size();
        message = begin_sweep_message(rows * static_cast<size_t>(engine_.shape().hidden));
        sweep.status = run_layers(sweep, received.rows, rows_of(&message));
      } catch (const std::exception& error) {
        sweep.status =
            Status(Code::kCapacity, std::string("the sweep failed: ") + error.what()).at(where());
      }
    }
    if (!sweep.status.ok()) {
      if (ranks_ != nullptr) ranks_->leave();  // The others may wait for this one.
      message = begin_sweep_message(0);
    }
    sweep.ended = true;
    finish_sweep_message(sweep, &message);
    mail_.post(next_, std::move(message));
    return {};
  }

  Status change_caches(const StageSweep& sweep) {
    Status first;
    for (const StageKvChange& change : sweep.changes) {
      Status status = this->change(change);
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

  Status change(const StageKvChange& change) {
    if (change.release) {
      const auto found = caches_.find(change.id);
      if (found == caches_.end()) return {};  // It could not be reserved, which was an error then.
      release(std::move(found->second));
      caches_.erase(found);
      return {};
    }
    try {
      return reserve(change).at(where());
    } catch (const std::exception& error) {
      return Status(Code::kCapacity, std::string("no KV cache: ") + error.what()).at(where());
    }
  }

  Status reserve(const StageKvChange& change) {
    const KvChunks chunks{change.chunk_prompt, change.chunk_most};
    // Given back unless it is kept.
    struct Held {
      ~Held() {
        if (kv != nullptr && shared) worker.followers_->release(kv.get());
        if (kv != nullptr) worker.engine_.release(std::move(kv));
      }
      StageWorker& worker;
      std::unique_ptr<KvSequence> kv;
      bool shared = false;
    };
    auto reserved = engine_.reserve(change.rows, change.budget, chunks);
    if (!reserved.ok()) return reserved.status();
    Held held{*this, std::move(reserved).value()};
    if (followers_ != nullptr) {
      SPILLWAY_RETURN_IF_ERROR(
          followers_->reserve(held.kv.get(), change.rows, change.budget, chunks));
      held.shared = true;
    }
    const auto place = caches_.try_emplace(change.id).first;
    place->second = std::move(held.kv);
    return {};
  }

  void release(std::unique_ptr<KvSequence> kv) {
    if (followers_ != nullptr) followers_->release(kv.get());
    engine_.release(std::move(kv));
  }

  Status run_layers(StageSweep& sweep, std::span<const float> in, std::span<float> out) {
    items_.clear();
    size_t token = 0, most = 0;
    for (const StageItem& item : sweep.items) {
      most = std::max(most, static_cast<size_t>(item.tokens));
    }
    rules_.resize(most);
    for (const StageItem& item : sweep.items) {
      const auto cache = caches_.find(item.id);
      if (cache == caches_.end()) {
        return Status(Code::kDeviceLost, "a sequence has no KV cache here").at(where());
      }
      const auto count = static_cast<size_t>(item.tokens);
      items_.push_back({.tokens = std::span(sweep.tokens).subspan(token, count),
                        .position = item.position,
                        .prompt = item.prompt,
                        .kv = cache->second.get(),
                        .all_logits = item.logits == StageLogits::kAll,
                        .no_logits = item.logits == StageLogits::kNone});
      // A step with a draft has a rule for each token, which the head alone reads.
      if (items_.back().is_step() && count > 1)
        items_.back().samples = std::span(rules_).first(count);
      token += count;
    }
    if (followers_ != nullptr) return lead({.in = in, .out = out}).at(where());
    const StageRows rows{.in = in, .out = out, .peers = ranks_ != nullptr ? this : nullptr};
    return engine_.run(items_, *this, rows).at(where());
  }

  // Runs the sweep together with the ranks that share its layers.
  Status lead(StageRows rows) {
    SPILLWAY_RETURN_IF_ERROR(followers_->start(items_));
    SPILLWAY_ASSIGN_OR_RETURN(const OtherRanks::Rows theirs, followers_->finish());
    rows.peers = theirs.peers;
    Status own;
    try {
      own = engine_.run(items_, *this, rows);
    } catch (const std::exception& error) {
      own = Status(Code::kCapacity, std::string("the sweep failed: ") + error.what());
    }
    SPILLWAY_ASSIGN_OR_RETURN(const ItemFailures late, followers_->settle(own));
    for (const auto& [item, status] : late) on_failure(item, status);
    return {};
  }

  void on_logits(size_t, int64_t, std::span<float>) override {}
  void on_sampled(size_t, int64_t, int32_t) override {}
  void on_failure(size_t item, const Status& status) override {
    if (!told_.contains(item)) sweep_->failures.push_back({item, status.at(where())});
  }

  Result<ItemFailures> meet(const ItemFailures& own) override {
    StageSweep met;
    met.number = sweep_->number;
    if (!own.empty()) {
      met.items = sweep_->items;
      met.tokens = sweep_->tokens;
    }
    for (const auto& [item, status] : own) {
      met.failures.push_back({item, status.at(where())});
      told_.insert(item);
    }
    std::vector<std::byte> message = begin_sweep_message(0);
    finish_sweep_message(met, &message);
    mail_.post(next_, std::move(message));
    return ItemFailures();
  }

  void ask_logits(int64_t) override { SPILLWAY_CHECK(false); }  // The first rank does.

  Result<int64_t> next_logits() override {
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail_.receive());
      SPILLWAY_ASSIGN_OR_RETURN(const StageMessage kind, kind_of(message.bytes));
      ended_ = ended_ || kind == StageMessage::kEnd;
      if (ended_) return Status(Code::kDeviceLost, "the first rank has ended");
      SPILLWAY_ASSIGN_OR_RETURN(const LogitsRequest request, decode_logits(message.bytes));
      if (request.sweep != sweep_->number) continue;  // It was over before this rank heard of it.
      if (request.rows >= 0) return request.rows;
      return Status(Code::kDeviceLost, "the first rank has failed");
    }
  }

  std::string where() const {
    const std::string name = "rank " + std::to_string(mail_.rank());
    const LayerRange all = all_layers(engine_.shape());
    const bool of_stage = ranks_ != nullptr && engine_.options().layers.value_or(all) != all;
    return of_stage ? name + of_ranks_here(mail_.size()) : name;
  }

  RankMail& mail_;
  Engine& engine_;
  OtherRanks* const followers_;  // That share this stage's layers; null: none
  RankGroup* const ranks_;       // Null: this is a pipeline stage
  const int next_;               // Where its sweeps go
  std::unordered_map<uint64_t, std::unique_ptr<KvSequence>> caches_;  // By id
  std::vector<SweepItem> items_;
  std::vector<SampleRule> rules_;
  StageSweep* sweep_ = nullptr;  // The one under way
  // Of a rank that shares every layer: failures of that sweep which the first rank knows, and
  // whether that has ended in the middle.
  std::set<size_t> told_;
  bool ended_ = false;
};

}  // namespace

Status run_stage(RankMail& mail, Engine& engine, OtherRanks* followers) {
  SPILLWAY_CHECK(mail.rank() > 0);
  const Status status = StageWorker(mail, engine, followers).run();
  if (status.ok()) return {};
  return {Code::kDeviceLost, std::string(status.message())};
}

}  // namespace spillway
