// What API keys with limits of their own (KeyLimits) have in use: sequences, and tokens of the last
// minute. Any thread. Outlives its leases.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/base/clock.h"
#include "server/http/error.h"
#include "server/http/key_limits.h"
#include "server/http/pace.h"

namespace spillway {

class KeyQuotas {
 public:
  KeyQuotas() = default;
  // Of the keys with the numbers 1, 2 ...; others have no limits.
  explicit KeyQuotas(const std::vector<KeyLimits>& of_keys);

  class Lease;

  // The refusal of any further request of a key now, so that a burst is refused before the cost of
  // tokenising; none: it may be accepted. `now`: steady_seconds().
  std::optional<ApiError> refuse(uint64_t key, double now = steady_seconds()) const;

  // Takes what a request may need at most, until its lease is given back. An error, which names the
  // limit: 429, or 400 for what the key may never have. Null: the key has no limits.
  ApiResult<std::shared_ptr<Lease>> take(uint64_t key, int64_t sequences, int64_t tokens,
                                         double now = steady_seconds());

 private:
  struct Key {
    explicit Key(KeyLimits given) : limits(std::move(given)) {}
    double tokens_at(double now) const;
    std::optional<ApiError> lacks(int64_t sequences, int64_t tokens, double now) const;

    const KeyLimits limits;
    mutable std::mutex mutex;
    int64_t sequences = 0;  // In use
    Pace pace;              // Of sequences that end
    // A bucket that fills steadily, up to a minute's tokens: what it had at the time `filled`.
    double tokens = 0, filled = 0;
  };

  Key* key_of(uint64_t key) const {
    return key == 0 || key > keys_.size() ? nullptr : keys_[key - 1].get();
  }

  std::vector<std::unique_ptr<Key>> keys_;
};

// What one request has. Given back once: by end(), or else by the destructor, as a request that did
// not run.
class KeyQuotas::Lease {
 public:
  explicit Lease(Key& key) : key_(key) {}
  ~Lease() { end(0); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Its sequences have ended, with so many tokens of prompts and answers; the rest is given back.
  void end(int64_t tokens_used, double now = steady_seconds());

 private:
  friend class KeyQuotas;
  Key& key_;
  int64_t sequences_ = 0, tokens_ = 0;  // Under the key's lock; 0: nothing, or given back
};

}  // namespace spillway
