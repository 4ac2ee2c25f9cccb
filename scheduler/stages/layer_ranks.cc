#include "scheduler/stages/layer_ranks.h"

#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/stages/rank_books.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_ring.h"

namespace spillway {
namespace {

class LayerRanks final : public OtherRanks {
 public:
  LayerRanks(RankMail& mail, RankBooks books) : mail_(mail), books_(std::move(books)) {}

  ~LayerRanks() override { end_ranks(mail_); }

  int64_t sweeps_at_once() const override { return 1; }

  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                          const KvChunks& chunks) const override {
    return books_.sequence_bytes(rows, budget, chunks);
  }
  Status check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const override {
    return books_.check_holds(rows, budget, chunks);
  }
  Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks) override {
    return books_.reserve(sequence, rows, budget, chunks);
  }
  void release(const KvSequence* sequence) override { books_.release(sequence); }

  Status start(std::span<const SweepItem> items) override {
    SPILLWAY_RETURN_IF_ERROR(lost_);
    StageSweep sweep = books_.sweep_of(items);
    sweep.number = number_ + 1;
    std::vector<std::byte> message = begin_sweep_message(0);
    finish_sweep_message(sweep, &message);
    std::vector<std::vector<std::byte>> messages(static_cast<size_t>(mail_.size()) - 1, message);
    for (size_t i = 0; i < messages.size(); ++i) {
      mail_.post(static_cast<int>(i) + 1, std::move(messages[i]));
    }
    ++number_;
    answers_ = 0;
    cause_ = {};
    failures_.clear();
    books_.told();
    return {};
  }

  Result<Rows> finish() override {
    return Rows{{}, {}, [this]() -> Result<ItemFailures> {
                  SPILLWAY_RETURN_IF_ERROR(take_answers());
                  return std::exchange(failures_, {});
                }};
  }

  Status settle(Status own) override {
    if (own.ok()) return own;
    const Status theirs = take_answers();
    // Where another rank has failed, this one knows only that it is gone.
    const Status& why = !theirs.ok() && theirs.code() != Code::kDeviceLost ? theirs : own;
    lost_ = Status(Code::kDeviceLost, std::string(why.message()));
    return lost_;
  }

 private:
  // Of all ranks, to the sweep under way. An error is the cause that one gives, or else that one is
  // gone.
  Status take_answers() {
    for (; answers_ + 1 < mail_.size(); ++answers_) {
      SPILLWAY_ASSIGN_OR_RETURN(const RankMail::Message message, mail_.receive());
      SPILLWAY_ASSIGN_OR_RETURN(const ReceivedSweep received, decode_sweep(message.bytes));
      const StageSweep& sweep = received.sweep;
      if (sweep.number != number_) {
        return Status(Code::kDeviceLost, "a rank answered sweep " + std::to_string(sweep.number) +
                                             ", not " + std::to_string(number_));
      }
      for (const StageFailure& failure : sweep.failures) {
        failures_.emplace_back(failure.item, failure.status);
      }
      if (sweep.status.ok()) continue;
      if (cause_.ok() || cause_.code() == Code::kDeviceLost) cause_ = sweep.status;
    }
    return cause_;
  }

  RankMail& mail_;
  RankBooks books_;
  uint64_t number_ = 0;  // Of the last sweep started
  int answers_ = 0;      // To it, so far
  Status cause_;         // Why it failed on another rank
  ItemFailures failures_;
  Status lost_;
};

}  // namespace

Result<std::unique_ptr<OtherRanks>> layer_ranks(RankMail& mail,
                                                const std::vector<KvCacheOptions>& caches) {
  SPILLWAY_CHECK(mail.rank() == 0 && static_cast<int>(caches.size()) + 1 == mail.size());
  SPILLWAY_ASSIGN_OR_RETURN(RankBooks books, RankBooks::open(caches));
  return std::unique_ptr<OtherRanks>(std::make_unique<LayerRanks>(mail, std::move(books)));
}

}  // namespace spillway
