#include "scheduler/stages/stage_ring.h"

#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/stages/rank_books.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_worker.h"

namespace spillway {
namespace {

class StageRing final : public BookedRanks {
 public:
  StageRing(RankMail& mail, int64_t hidden, RankBooks books)
      : BookedRanks(std::move(books)), mail_(mail), hidden_(static_cast<size_t>(hidden)) {}

  ~StageRing() override { end_ranks(mail_); }

  int64_t sweeps_at_once() const override { return mail_.size(); }

  Status start(std::span<const SweepItem> items) override {
    StageSweep sweep = books_.sweep_of(items);
    sweep.number = started_ + 1;
    std::vector<std::byte> message = begin_sweep_message(0);
    finish_sweep_message(sweep, &message);
    mail_.post(next_rank(0, mail_.size()), std::move(message));
    ++started_;
    books_.told();
    return {};
  }

  Result<Rows> finish() override {
    SPILLWAY_CHECK(finished_ < started_);
    ++finished_;
    SPILLWAY_RETURN_IF_ERROR(lost_);
    Result<RankMail::Message> message = mail_.receive();
    if (!message.ok()) return lost_ = message.status();
    message_ = std::move(message.value().bytes);
    Result<ReceivedSweep> received = decode_sweep(message_);
    if (!received.ok()) {
      return lost_ = Status(Code::kDeviceLost, std::string(received.status().message()));
    }
    StageSweep& sweep = received->sweep;
    if (sweep.number != finished_) {
      return lost_ = Status(Code::kDeviceLost, "a stage answered sweep " +
                                                   std::to_string(sweep.number) + ", not " +
                                                   std::to_string(finished_));
    }
    SPILLWAY_RETURN_IF_ERROR(sweep.status);
    SPILLWAY_CHECK(received->rows.size() == sweep.tokens.size() * hidden_);
    Rows rows{received->rows, {}, nullptr};
    for (StageFailure& failure : sweep.failures) {
      rows.failures.emplace_back(failure.item, std::move(failure.status));
    }
    return rows;
  }

  Result<ItemFailures> settle(Status own) override {
    SPILLWAY_RETURN_IF_ERROR(own);
    return ItemFailures();
  }

 private:
  RankMail& mail_;
  const size_t hidden_;
  uint64_t started_ = 0, finished_ = 0;
  std::vector<std::byte> message_;  // The last one
  Status lost_;
};

}  // namespace

void end_ranks(RankMail& mail) {
  for (int rank = 1; rank < mail.size(); ++rank) mail.post(rank, end_message());
}

Result<std::unique_ptr<OtherRanks>> stage_ring(RankMail& mail, int64_t hidden,
                                               const std::vector<KvCacheOptions>& caches,
                                               int of_each) {
  SPILLWAY_CHECK(mail.rank() == 0 &&
                 static_cast<int>(caches.size()) == (mail.size() - 1) * of_each);
  SPILLWAY_ASSIGN_OR_RETURN(RankBooks books, RankBooks::open(caches, of_each));
  return std::unique_ptr<OtherRanks>(std::make_unique<StageRing>(mail, hidden, std::move(books)));
}

}  // namespace spillway
