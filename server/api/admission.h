// Counts sequences from the moment a request arrives, so that a burst is refused before the cost of
// tokenising. The last eighth of the slots is kept for clients that hold less than that, so that
// one client's flood refuses nobody else's request. Any thread. Outlives its tickets.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "server/http/pace.h"

namespace spillway {

class Admission {
 public:
  explicit Admission(int64_t slots_max) : slots_max_(slots_max) {}

  // Holds some slots; the destructor frees them.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          client_(other.client_),
          slots_(other.slots_) {}
    Ticket& operator=(Ticket&& other) = delete;
    ~Ticket() { release(); }

    // Grows to `slots`; false, and unchanged, when that many are not free.
    bool grow_to(int64_t slots);
    void release();

   private:
    friend class Admission;
    Ticket(Admission* owner, uint64_t client) : owner_(owner), client_(client) {}
    Admission* owner_;
    uint64_t client_;
    int64_t slots_ = 1;
  };

  // Takes one slot for a request of the client that has just arrived; its real need is known after
  // parsing.
  std::optional<Ticket> enter(uint64_t client);

  // Expected seconds until so many slots are free, by the pace at which slots were freed: 1 .. 59.
  int retry_after_seconds(int64_t slots = 1) const;

  int64_t slots_max() const { return slots_max_; }
  int64_t held() const;

 private:
  // So many slots more for a request that has `before_it`.
  bool take(uint64_t client, int64_t slots, int64_t before_it);
  void give_back(uint64_t client, int64_t slots);

  const int64_t slots_max_;
  mutable std::mutex mutex_;
  int64_t held_ = 0;
  std::unordered_map<uint64_t, int64_t> held_by_;  // Clients that hold any
  Pace pace_;
};

}  // namespace spillway
