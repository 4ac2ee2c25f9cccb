#include "server/api/key_quotas.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spillway {

KeyQuotas::KeyQuotas(const std::vector<KeyLimits>& of_keys) {
  for (const KeyLimits& limits : of_keys) {
    const bool any = limits.slots > 0 || limits.tokens_per_minute > 0;
    keys_.push_back(any ? std::make_unique<Key>(limits) : nullptr);
    if (any) keys_.back()->tokens = static_cast<double>(limits.tokens_per_minute);
  }
}

// Under the lock.
double KeyQuotas::Key::tokens_at(double now) const {
  const auto most = static_cast<double>(limits.tokens_per_minute);
  return std::min(most, tokens + std::max(0.0, now - filled) * most / 60);
}

// Under the lock.
std::optional<ApiError> KeyQuotas::Key::lacks(int64_t wanted_sequences, int64_t wanted_tokens,
                                              double now) const {
  const int64_t slots = limits.slots, minute = limits.tokens_per_minute;
  const std::string asked = ", and this request asks for ";
  if (slots > 0 && sequences + wanted_sequences > slots) {
    const bool never = wanted_sequences > slots;
    const std::string what = "have " + std::to_string(slots) +
                             " sequences waiting and running at once" +
                             (never ? asked : ": " + std::to_string(sequences) + " are" + asked) +
                             std::to_string(wanted_sequences);
    const double wait =
        pace.seconds_for(static_cast<double>(sequences + wanted_sequences - slots), now);
    return key_limit_exceeded(limits.name, "slots", slots, what, never ? 0 : retry_after(wait));
  }
  const double left = tokens_at(now);
  if (minute > 0 && static_cast<double>(wanted_tokens) > left) {
    const bool never = wanted_tokens > minute;
    const std::string what =
        "have " + std::to_string(minute) + " tokens a minute, of prompts and max_tokens" +
        (never ? asked : ": " + std::to_string(static_cast<int64_t>(left)) + " are left" + asked) +
        std::to_string(wanted_tokens);
    const double wait =
        (static_cast<double>(wanted_tokens) - left) * 60 / static_cast<double>(minute);
    return key_limit_exceeded(limits.name, "tokens-per-minute", minute, what,
                              never ? 0 : retry_after(wait));
  }
  return {};
}

std::optional<ApiError> KeyQuotas::refuse(uint64_t key, double now) const {
  const Key* found = key_of(key);
  if (found == nullptr) return {};
  const std::lock_guard lock(found->mutex);
  return found->lacks(1, 1, now);
}

ApiResult<std::shared_ptr<KeyQuotas::Lease>> KeyQuotas::take(uint64_t key, int64_t sequences,
                                                             int64_t tokens, double now) {
  Key* found = key_of(key);
  if (found == nullptr) return std::shared_ptr<Lease>();
  auto lease = std::make_shared<Lease>(*found);
  const std::lock_guard lock(found->mutex);
  if (auto error = found->lacks(sequences, tokens, now)) return *std::move(error);
  if (found->sequences == 0) found->pace.start(now);
  found->tokens = found->tokens_at(now) - static_cast<double>(tokens);
  found->filled = now;
  found->sequences += sequences;
  lease->sequences_ = sequences;
  lease->tokens_ = tokens;
  return lease;
}

void KeyQuotas::Lease::end(int64_t tokens_used, double now) {
  const std::lock_guard lock(key_.mutex);
  if (sequences_ == 0) return;
  key_.sequences -= sequences_;
  key_.pace.freed(static_cast<double>(sequences_), now);
  key_.tokens += static_cast<double>(std::max<int64_t>(0, tokens_ - tokens_used));
  sequences_ = tokens_ = 0;
}

}  // namespace spillway
