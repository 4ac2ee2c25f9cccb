#include "scheduler/stages/layer_ranks.h"

#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/stages/rank_books.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_ring.h"

namespace spillway {
namespace {

class LayerRanks final : public BookedRanks, private RankPeers {
 public:
  LayerRanks(RankMail& mail, RankGroup& group, RankBooks books, std::shared_ptr<void> followers)
      : BookedRanks(std::move(books)),
        followers_(std::move(followers)),
        mail_(mail),
        group_(group) {}

  ~LayerRanks() override { end_ranks(mail_); }

  int64_t sweeps_at_once() const override { return 1; }

  Status start(std::span<const SweepItem> items) override {
    SPILLWAY_RETURN_IF_ERROR(lost_);
    try {
      post(items);
    } catch (...) {
      // Some ranks may have the sweep, and wait in it for this one.
      group_.leave();
      lost_ = Status(Code::kDeviceLost, "the ranks could not be told of a sweep");
      throw;
    }
    return {};
  }

  Result<Rows> finish() override { return Rows{{}, {}, this}; }

  Result<ItemFailures> settle(Status own) override {
    if (!own.ok()) {
      lost_ = Status(Code::kDeviceLost, std::string(own.message()));
      // They may wait for this rank in what all compute, or for what it asks next.
      group_.leave();
      ask_logits(-1);
    }
    while (ended_ < others()) {
      const Status taken = take_answer();
      if (!taken.ok()) return lost_ = taken;
    }
    if (own.ok() && cause_.ok()) return std::exchange(failures_, {});
    // Where another rank has failed, this one knows only that it is gone.
    const bool theirs = own.ok() || (!cause_.ok() && cause_.code() != Code::kDeviceLost);
    return lost_ = Status(Code::kDeviceLost, std::string((theirs ? cause_ : own).message()));
  }

 private:
  size_t others() const { return static_cast<size_t>(mail_.size()) - 1; }

  void post(std::span<const SweepItem> items) {
    StageSweep sweep = books_.sweep_of(items);
    sweep.number = number_ + 1;
    std::vector<std::byte> message = begin_sweep_message(0);
    finish_sweep_message(sweep, &message);
    std::vector<std::vector<std::byte>> messages(others(), message);
    met_ = ended_ = 0;
    cause_ = {};
    failures_.clear();
    ++number_;
    for (size_t i = 0; i < messages.size(); ++i) {
      mail_.post(static_cast<int>(i) + 1, std::move(messages[i]));
    }
    books_.told();
  }

  Result<ItemFailures> meet(const ItemFailures&) override {
    // One that has met the others may have ended, too, where the head is not theirs.
    while (met_ < others()) {
      SPILLWAY_RETURN_IF_ERROR(take_answer());
      if (!cause_.ok()) return Status(Code::kDeviceLost, std::string(cause_.message()));
    }
    return std::exchange(failures_, {});
  }

  void ask_logits(int64_t rows) override {
    const std::vector<std::byte> message = logits_message({number_, rows});
    for (int rank = 1; rank < mail_.size(); ++rank) mail_.post(rank, message);
  }

  Result<int64_t> next_logits() override {
    return Status(Code::kInvalidArgument, "the first rank asks, and is not asked");
  }

  // One answer to the sweep under way. An error is of the mail.
  Status take_answer() {
    SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail_.receive());
    Result<ReceivedSweep> received = decode_sweep(message.bytes);
    if (!received.ok()) return {Code::kDeviceLost, std::string(received.status().message())};
    const StageSweep& sweep = received->sweep;
    if (sweep.number != number_) {
      return {Code::kDeviceLost, "a rank answered sweep " + std::to_string(sweep.number) +
                                     ", not " + std::to_string(number_)};
    }
    ++(sweep.ended ? ended_ : met_);
    for (const StageFailure& failure : sweep.failures) {
      failures_.emplace_back(failure.item, failure.status);
    }
    if (sweep.status.ok()) return {};
    if (cause_.ok() || cause_.code() == Code::kDeviceLost) cause_ = sweep.status;
    return {};
  }

  const std::shared_ptr<void> followers_;
  RankMail& mail_;
  RankGroup& group_;
  uint64_t number_ = 0;         // Of the last sweep started
  size_t met_ = 0, ended_ = 0;  // How many have said so of it
  Status cause_;                // Why it failed on another rank
  ItemFailures failures_;       // That the scheduler has not learnt of
  Status lost_;
};

}  // namespace

Result<std::unique_ptr<OtherRanks>> layer_ranks(RankMail& mail, RankGroup& group,
                                                const std::vector<KvCacheOptions>& caches,
                                                bool of_stage, std::shared_ptr<void> followers) {
  SPILLWAY_CHECK(mail.rank() == 0 && static_cast<int>(caches.size()) + 1 == mail.size());
  SPILLWAY_ASSIGN_OR_RETURN(RankBooks books,
                            RankBooks::open(caches, 1, of_stage ? of_ranks_here(mail.size()) : ""));
  return std::unique_ptr<OtherRanks>(
      std::make_unique<LayerRanks>(mail, group, std::move(books), std::move(followers)));
}

}  // namespace spillway
