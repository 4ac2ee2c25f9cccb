#include "scheduler/stages/stages_of_ranks.h"

#include <deque>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {

namespace {

class StagesOfRanks final : public OtherRanks {
 public:
  StagesOfRanks(std::unique_ptr<OtherRanks> stages, std::unique_ptr<OtherRanks> beside)
      : stages_(std::move(stages)), beside_(std::move(beside)) {}

  int64_t sweeps_at_once() const override { return stages_->sweeps_at_once(); }

  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                          const KvChunks& chunks) const override {
    return stages_->sequence_bytes(rows, budget, chunks) +
           beside_->sequence_bytes(rows, budget, chunks);
  }

  Status check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const override {
    SPILLWAY_RETURN_IF_ERROR(stages_->check_holds(rows, budget, chunks));
    return beside_->check_holds(rows, budget, chunks);
  }

  Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks) override {
    SPILLWAY_RETURN_IF_ERROR(beside_->reserve(sequence, rows, budget, chunks));
    try {
      Status status = stages_->reserve(sequence, rows, budget, chunks);
      if (!status.ok()) beside_->release(sequence);
      return status;
    } catch (...) {
      beside_->release(sequence);
      throw;
    }
  }

  void release(const KvSequence* sequence) override {
    beside_->release(sequence);
    stages_->release(sequence);
  }

  // The ranks beside this one have as little to do until its rows come.
  Status start(std::span<const SweepItem> items) override {
    under_way_.emplace_back(items.begin(), items.end());
    Status status;
    try {
      status = stages_->start(items);
    } catch (...) {
      under_way_.pop_back();
      throw;
    }
    if (!status.ok()) under_way_.pop_back();
    return status;
  }

  Result<Rows> finish() override {
    SPILLWAY_CHECK(!under_way_.empty());
    const std::vector<SweepItem> items = std::move(under_way_.front());
    under_way_.pop_front();
    SPILLWAY_ASSIGN_OR_RETURN(Rows rows, stages_->finish());
    SPILLWAY_RETURN_IF_ERROR(beside_->start(items));
    SPILLWAY_ASSIGN_OR_RETURN(const Rows theirs, beside_->finish());
    rows.peers = theirs.peers;
    return rows;
  }

  Result<ItemFailures> settle(Status own) override { return beside_->settle(std::move(own)); }

 private:
  const std::unique_ptr<OtherRanks> stages_, beside_;
  std::deque<std::vector<SweepItem>> under_way_;  // Sweeps that the ranks beside do not know yet
};

}  // namespace

std::unique_ptr<OtherRanks> stages_of_ranks(std::unique_ptr<OtherRanks> stages,
                                            std::unique_ptr<OtherRanks> beside) {
  return std::make_unique<StagesOfRanks>(std::move(stages), std::move(beside));
}

}  // namespace spillway
