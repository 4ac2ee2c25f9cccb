#include "scheduler/stages/rank_books.h"

#include <utility>

#include "kernels/base/check.h"

namespace spillway {

Result<RankBooks> RankBooks::open(const std::vector<KvCacheOptions>& caches, int of_each,
                                  const std::string& after_name) {
  RankBooks books;
  books.of_each_ = of_each;
  books.after_name_ = after_name;
  for (const KvCacheOptions& options : caches) {
    SPILLWAY_ASSIGN_OR_RETURN(books.books_.emplace_back(), KvCache::open_books(options));
  }
  return books;
}

uint64_t RankBooks::sequence_bytes(int64_t rows, const KvBudget& budget,
                                   const KvChunks& chunks) const {
  uint64_t bytes = 0;
  for (const auto& book : books_) bytes += book->sequence_bytes(rows, budget, chunks);
  return bytes;
}

Status RankBooks::check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const {
  for (size_t i = 0; i < books_.size(); ++i) {
    SPILLWAY_RETURN_IF_ERROR(books_[i]->check_holds(rows, budget, chunks).at(name(i)));
  }
  return {};
}

Status RankBooks::reserve(const KvSequence* sequence, int64_t rows, const KvBudget& budget,
                          const KvChunks& chunks) {
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

void RankBooks::release(const KvSequence* sequence) {
  const auto found = live_.find(sequence);
  SPILLWAY_CHECK(found != live_.end());
  Reserved& reserved = found->second;
  for (size_t i = 0; i < books_.size(); ++i) books_[i]->release(std::move(reserved.places[i]));
  changes_.push_back({reserved.id, true, 0, {}, 0, 0});
  live_.erase(found);
}

StageSweep RankBooks::sweep_of(std::span<const SweepItem> items) const {
  StageSweep sweep;
  sweep.changes = changes_;
  for (const SweepItem& item : items) {
    const StageLogits logits = item.no_logits    ? StageLogits::kNone
                               : item.all_logits ? StageLogits::kAll
                                                 : StageLogits::kLast;
    sweep.items.push_back({live_.at(item.kv).id, item.position, item.prompt,
                           static_cast<int64_t>(item.tokens.size()), logits});
    sweep.tokens.insert(sweep.tokens.end(), item.tokens.begin(), item.tokens.end());
  }
  return sweep;
}

}  // namespace spillway
