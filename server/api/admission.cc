#include "server/api/admission.h"

#include <algorithm>
#include <cmath>

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
  // Idle time says nothing about how fast slots are freed.
  if (held_ == 0) last_release_ = Clock::now();
  held_ += slots;
  return true;
}

void Admission::give_back(int64_t slots) {
  const std::lock_guard lock(mutex_);
  held_ -= slots;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_release_).count();
  last_release_ = now;
  const double each = seconds / static_cast<double>(slots);
  seconds_per_slot_ = seconds_per_slot_ == 0 ? each : 0.8 * seconds_per_slot_ + 0.2 * each;
}

int Admission::retry_after_seconds() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::clamp(std::ceil(seconds_per_slot_), 1.0, 60.0));
}

int64_t Admission::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace spillway
