#include "server/api/admission.h"

#include <algorithm>

#include "kernels/base/clock.h"

namespace spillway {
namespace {

constexpr int64_t kKeptPart = 8;  // An eighth

}  // namespace

bool Admission::Ticket::grow_to(int64_t slots) {
  const int64_t more = slots - slots_;
  if (more > 0 && !owner_->take(client_, more, slots_)) return false;
  slots_ = std::max(slots_, slots);
  return true;
}

void Admission::Ticket::release() {
  if (owner_ != nullptr) owner_->give_back(client_, slots_);
  owner_ = nullptr;
}

std::optional<Admission::Ticket> Admission::enter(uint64_t client) {
  if (!take(client, 1, 0)) return {};
  return Ticket(this, client);
}

bool Admission::take(uint64_t client, int64_t slots, int64_t before_it) {
  const std::lock_guard lock(mutex_);
  const auto own = held_by_.find(client);
  const int64_t before = own == held_by_.end() ? 0 : own->second;
  // A request may have all where there is no other.
  const bool keeps = held_ > before_it && before + slots > slots_max_ / kKeptPart;
  const int64_t kept = keeps ? slots_max_ / kKeptPart : 0;
  if (slots > slots_max_ - kept - held_) return false;
  held_by_[client] += slots;
  if (held_ == 0) pace_.start(steady_seconds());
  held_ += slots;
  return true;
}

void Admission::give_back(uint64_t client, int64_t slots) {
  const std::lock_guard lock(mutex_);
  const auto own = held_by_.find(client);
  own->second -= slots;
  if (own->second == 0) held_by_.erase(own);
  held_ -= slots;
  pace_.freed(static_cast<double>(slots), steady_seconds());
}

int Admission::retry_after_seconds(int64_t slots) const {
  const std::lock_guard lock(mutex_);
  const int64_t missing = std::max<int64_t>(1, held_ + slots - slots_max_);
  return retry_after(pace_.seconds_for(static_cast<double>(missing), steady_seconds()));
}

int64_t Admission::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace spillway
