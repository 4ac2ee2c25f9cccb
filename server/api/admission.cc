#include "server/api/admission.h"

#include <algorithm>

#include "kernels/base/clock.h"

namespace spillway {

bool Admission::Ticket::grow_to(int64_t slots) {
  const int64_t more = slots - slots_;
  if (more > 0 && !owner_->take(more)) return false;
  slots_ = std::max(slots_, slots);
  return true;
}

void Admission::Ticket::release() {
  if (owner_ != nullptr) owner_->give_back(slots_);
  owner_ = nullptr;
}

std::optional<Admission::Ticket> Admission::enter() {
  if (!take(1)) return {};
  return Ticket(this);
}

bool Admission::take(int64_t slots) {
  const std::lock_guard lock(mutex_);
  if (slots > slots_max_ - held_) return false;
  if (held_ == 0) pace_.start(steady_seconds());
  held_ += slots;
  return true;
}

void Admission::give_back(int64_t slots) {
  const std::lock_guard lock(mutex_);
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
