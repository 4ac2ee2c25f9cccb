#include "scheduler/block.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {

namespace {

// Blocks of fewer sequences keep no place for clients that have none.
constexpr int64_t kKeepsPlaceFrom = 8;

// Who of the running sequences gives way first: the greatest of these. `share`: of its client.
std::tuple<int32_t, int64_t, uint64_t> leaving_order(const Sequence& sequence, int64_t share) {
  return {sequence.priority(), share, sequence.admission()};
}

}  // namespace

Status out_of_memory(const std::exception& error) {
  return {Code::kCapacity, std::string("the request could not be started: ") + error.what()};
}

Block::Block(KvRoom& room, WaitingQueue& waiting, const SweepLimits& limits,
             std::function<void()> retire)
    : room_(room),
      needs_(room.needs()),
      waiting_(waiting),
      sequences_max_(limits.block_sequences),
      kv_bytes_(limits.kv_bytes),
      retire_(std::move(retire)) {
  const auto most = static_cast<size_t>(sequences_max_);
  running_.reserve(most);
  // As many as give way to others, and then all that run, for want of memory.
  aside_.reserve(2 * most);
}

// ---- Who gives way ------------------------------------------------------------------------------

// One in its prompt has pieces of it that others may wait for, and will soon be out of it.
bool Block::can_leave(const Sequence& sequence) const {
  return needs_.grows(sequence) && !sequence.prefilling() && !sequence.finished();
}

bool Block::takes_place_of(const Sequence& next, const Sequence& other) const {
  if (other.client() == next.client()) return false;
  if (other.priority() != next.priority()) return other.priority() > next.priority();
  return waiting_.running(next.client()) == 0 && waiting_.running(other.client()) >= 2;
}

// REQUIRES: one can leave.
size_t Block::first_to_leave() const {
  size_t first = running_.size();
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!can_leave(*running_[i])) continue;
    const auto order = [&](size_t at) {
      return leaving_order(*running_[at], waiting_.running(running_[at]->client()));
    };
    if (first == running_.size() || order(first) < order(i)) first = i;
  }
  SPILLWAY_CHECK(first < running_.size());
  return first;
}

// REQUIRES: some are set aside.
size_t Block::first_back() const {
  const auto order = [&](const std::unique_ptr<Sequence>& sequence) {
    return leaving_order(*sequence, waiting_.running(sequence->client()));
  };
  const auto first =
      std::min_element(aside_.begin(), aside_.end(),
                       [&](const auto& a, const auto& b) { return order(a) < order(b); });
  SPILLWAY_CHECK(first != aside_.end());
  return static_cast<size_t>(first - aside_.begin());
}

bool Block::may_make_way(const Sequence& next) const {
  if (!needs_.grow() || next.id() == no_room_for_) return false;
  if (static_cast<int64_t>(aside_.size()) >= sequences_max_) return false;
  return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
    return takes_place_of(next, *other) && can_leave(*other);
  });
}

// The fewest in their order that let `next` join; none: not even all would.
std::vector<Sequence*> Block::who_makes_way(const Sequence& next, const Joins& joins) const {
  if (!joins(0, likely_bytes_)) return {};  // It is the sweep's prompt tokens that it waits for.
  std::vector<Sequence*> candidates, leaving;
  for (const auto& other : running_) {
    if (takes_place_of(next, *other) && can_leave(*other)) candidates.push_back(other.get());
  }
  std::unordered_map<uint64_t, int64_t> shares;  // When those that leave have left
  const auto share = [&](const Sequence& sequence) -> int64_t& {
    const uint64_t client = sequence.client();
    return shares.try_emplace(client, waiting_.running(client)).first->second;
  };
  uint64_t bytes = 0;
  const auto running = static_cast<int64_t>(running_.size());
  while (!joins(running - static_cast<int64_t>(leaving.size()), bytes)) {
    if (static_cast<int64_t>(aside_.size() + leaving.size()) >= sequences_max_) return {};
    auto first = candidates.end();
    for (auto at = candidates.begin(); at != candidates.end(); ++at) {
      if ((*at)->priority() == next.priority() && share(**at) < 2) continue;
      const bool is_first = first == candidates.end() || leaving_order(**first, share(**first)) <
                                                             leaving_order(**at, share(**at));
      if (is_first) first = at;
    }
    if (first == candidates.end()) return {};
    --share(**first);
    bytes += needs_.likely_bytes(**first);
    leaving.push_back(*first);
    candidates.erase(first);
  }
  return leaving;
}

bool Block::make_way(const Sequence& next, const Joins& joins) {
  bool any = false;
  for (const Sequence* leaving : who_makes_way(next, joins)) {
    const auto at = std::find_if(running_.begin(), running_.end(),
                                 [&](const auto& sequence) { return sequence.get() == leaving; });
    const uint64_t likely = needs_.likely_bytes(*leaving);
    // Where its cache cannot be moved it goes on where it is, and `next` waits.
    if (!set_aside(static_cast<size_t>(at - running_.begin())).ok()) {
      note_no_room(next);
      break;
    }
    likely_bytes_ -= std::min(likely_bytes_, likely);
    any = true;
  }
  return any;
}

bool Block::keeps_place(const Sequence& next) const {
  return !needs_.grow() && sequences_max_ >= kKeepsPlaceFrom && places() == 1 &&
         waiting_.several_clients() && waiting_.running(next.client()) > 0;
}

// ---- Moving them --------------------------------------------------------------------------------

bool Block::grow(Sequence& sequence) {
  const int64_t most = sequence.kv()->rows, now = sequence.cached() + 1;
  const int64_t draft = sequence.draft_tokens();
  try {
    return (draft > 0 && room_.grow(sequence, std::min(most, now + draft + 1))) ||
           room_.grow(sequence, std::min(most, now + 1)) ||
           room_.grow(sequence, std::min(most, now));
  } catch (const std::exception& error) {
    sequence.finish(FinishReason::kError, out_of_memory(error));
    return true;
  }
}

bool Block::make_room() {
  if (!needs_.grow()) return true;
  bool enough = true;
  for (size_t i = 0; i < running_.size();) {
    if (!can_leave(*running_[i]) || grow(*running_[i])) {
      ++i;
      continue;
    }
    enough = false;
    const size_t leaving = first_to_leave();  // It may be this one itself.
    const Status status = set_aside(leaving);
    if (status.ok()) {
      if (leaving < i) --i;
      continue;
    }
    // An error is its own: there is no room for it where it is.
    running_[leaving]->finish(FinishReason::kError, status);
    retire_();
    i = 0;
  }
  retire_();
  return enough;
}

Status Block::set_aside(size_t index) {
  const auto at = running_.begin() + static_cast<ptrdiff_t>(index);
  SPILLWAY_RETURN_IF_ERROR(room_.set_aside(**at));
  waiting_.end((*at)->client());
  aside_.push_back(std::move(*at));
  running_.erase(at);
  ++times_set_aside_;
  return {};
}

void Block::count_needs() {
  likely_bytes_ = promised_bytes_ = 0;
  if (!needs_.grow()) return;
  for (const auto& sequence : running_) {
    likely_bytes_ += needs_.likely_bytes(*sequence);
    promised_bytes_ += needs_.aside_bytes(*sequence);
  }
  for (const auto& sequence : aside_) promised_bytes_ += needs_.aside_bytes(*sequence);
}

bool Block::aside_goes_first() const {
  const Sequence& aside = *aside_[first_back()];
  const Sequence& next = waiting_.front();
  if (aside.priority() != next.priority()) return aside.priority() < next.priority();
  return waiting_.running(next.client()) > 0 || waiting_.running(aside.client()) == 0;
}

bool Block::bring_back() {
  if (full()) return false;
  const auto at = aside_.begin() + static_cast<ptrdiff_t>(first_back());
  Sequence& sequence = **at;
  const bool others = !running_.empty();
  const uint64_t likely = needs_.likely_bytes(sequence);
  if (others && likely_bytes_ + likely + room_.prefix_used_bytes() > kv_bytes_) return false;
  Status status;
  bool begun = false;
  try {
    waiting_.begin(sequence.client());
    begun = true;
    status = room_.bring_back(sequence);
  } catch (const std::exception& error) {
    status = out_of_memory(error);
  }
  if (!status.ok()) {
    if (begun) waiting_.end(sequence.client());
    if (status.code() == Code::kCapacity && others) return false;
    sequence.finish(FinishReason::kError, status);
    retire_();
    return true;
  }
  const auto place = std::lower_bound(
      running_.begin(), running_.end(), *at,
      [](const auto& a, const auto& b) { return a->admission() < b->admission(); });
  running_.insert(place, std::move(*at));
  aside_.erase(at);
  likely_bytes_ += likely;
  return true;
}

void Block::enter_next() {
  running_.push_back(waiting_.pop_to_run());
  if (!needs_.grow()) return;
  likely_bytes_ += needs_.likely_bytes(*running_.back());
  promised_bytes_ += needs_.aside_bytes(*running_.back());
}

// ---- Endings ------------------------------------------------------------------------------------

Block::Ended Block::find_ended() {
  const auto lives = [](const std::unique_ptr<Sequence>& s) { return !s->finished(); };
  const auto running = std::stable_partition(running_.begin(), running_.end(), lives);
  const auto aside = std::stable_partition(aside_.begin(), aside_.end(), lives);
  return {{running, running_.end()}, {aside, aside_.end()}};
}

void Block::remove(const Ended& ended) {
  for (const auto& sequence : ended.running) waiting_.end(sequence->client());
  running_.resize(running_.size() - ended.running.size());
  aside_.resize(aside_.size() - ended.aside.size());
}

}  // namespace spillway
