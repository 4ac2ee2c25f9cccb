#include "scheduler/stages/stage_ring.h"

#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/stages/stage_messages.h"
#include "scheduler/stages/stage_worker.h"

namespace spillway {
namespace {

class StageRing final : public EarlierStages {
 public:
  StageRing(RankMail& mail, int64_t hidden, std::vector<std::unique_ptr<KvCache>> books)
      : mail_(mail), hidden_(static_cast<size_t>(hidden)), books_(std::move(books)) {}

  ~StageRing() override {
    for (int rank = 1; rank < mail_.size(); ++rank) mail_.post(rank, end_message());
  }

  int64_t stages() const override { return mail_.size(); }

  uint64_t sequence_bytes(int64_t rows, const KvBudget& budget,
                          const KvChunks& chunks) const override {
    uint64_t bytes = 0;
    for (const auto& book : books_) bytes += book->sequence_bytes(rows, budget, chunks);
    return bytes;
  }

  Status check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const override {
    for (size_t i = 0; i < books_.size(); ++i) {
      SPILLWAY_RETURN_IF_ERROR(books_[i]->check_holds(rows, budget, chunks).at(name(i)));
    }
    return {};
  }

  Status reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                 const KvChunks& chunks) override {
    Reserved reserved{++last_id_, {}};
    const auto give_back = [&] {
      for (size_t i = 0; i < reserved.places.size(); ++i) {
        books_[i]->release(std::move(reserved.places[i]));
      }
    };
    try {
      for (size_t i = 0; i < books_.size(); ++i) {
        reserved.places.reserve(books_.size());
        auto place = books_[i]->reserve(rows, budget, chunks);
        if (!place.ok()) {
          give_back();
          return place.status().at(name(i));
        }
        reserved.places.push_back(std::move(place).value());
      }
      changes_.reserve(changes_.size() + live_.size() + 2);  // release() allocates nothing.
      changes_.push_back({reserved.id, false, rows, budget, chunks.prompt, chunks.most});
      live_[sequence] = std::move(reserved);
    } catch (...) {
      if (!changes_.empty() && changes_.back().id == reserved.id) changes_.pop_back();
      give_back();
      throw;
    }
    return {};
  }

  void release(const KvSequence* sequence) override {
    const auto found = live_.find(sequence);
    SPILLWAY_CHECK(found != live_.end());
    Reserved& reserved = found->second;
    for (size_t i = 0; i < books_.size(); ++i) books_[i]->release(std::move(reserved.places[i]));
    changes_.push_back({reserved.id, true, 0, {}, 0, 0});
    live_.erase(found);
  }

  Status start(std::span<const SweepItem> items) override {
    StageSweep sweep;
    sweep.number = started_ + 1;
    sweep.changes = changes_;
    for (const SweepItem& item : items) {
      sweep.items.push_back({live_.at(item.kv).id, item.position, item.prompt,
                             static_cast<int64_t>(item.tokens.size())});
      sweep.tokens.insert(sweep.tokens.end(), item.tokens.begin(), item.tokens.end());
    }
    std::vector<std::byte> message = begin_sweep_message(0);
    finish_sweep_message(sweep, &message);
    mail_.post(next_rank(0, mail_.size()), std::move(message));
    ++started_;
    changes_.clear();
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
    Rows rows{received->rows, {}};
    for (StageFailure& failure : sweep.failures) {
      rows.failures.emplace_back(failure.item, std::move(failure.status));
    }
    return rows;
  }

 private:
  struct Reserved {
    uint64_t id = 0;
    std::vector<std::unique_ptr<KvSequence>> places;  // In the books
  };

  static std::string name(size_t book) { return "rank " + std::to_string(book + 1); }

  RankMail& mail_;
  const size_t hidden_;
  const std::vector<std::unique_ptr<KvCache>> books_;  // Of rank 1 and those after it
  std::unordered_map<const KvSequence*, Reserved> live_;
  std::vector<StageKvChange> changes_;  // That the next sweep tells
  uint64_t last_id_ = 0, started_ = 0, finished_ = 0;
  std::vector<std::byte> message_;  // The last one
  Status lost_;
};

}  // namespace

Result<std::unique_ptr<EarlierStages>> stage_ring(RankMail& mail, int64_t hidden,
                                                  std::vector<KvCacheOptions> caches) {
  SPILLWAY_CHECK(mail.rank() == 0 && static_cast<int>(caches.size()) + 1 == mail.size());
  std::vector<std::unique_ptr<KvCache>> books;
  for (const KvCacheOptions& options : caches) {
    SPILLWAY_ASSIGN_OR_RETURN(books.emplace_back(), KvCache::open_books(options));
  }
  return std::unique_ptr<EarlierStages>(
      std::make_unique<StageRing>(mail, hidden, std::move(books)));
}

}  // namespace spillway
