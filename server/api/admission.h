// Counts sequences from the moment a request arrives, so that a burst is refused before the cost of
// tokenising. Any thread. Outlives its tickets.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
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
        : owner_(std::exchange(other.owner_, nullptr)), slots_(other.slots_) {}
    Ticket& operator=(Ticket&& other) = delete;
    ~Ticket() { release(); }

    // Grows to `slots`; false, and unchanged, when that many are not free.
    bool grow_to(int64_t slots);
    void release();

   private:
    friend class Admission;
    explicit Ticket(Admission* owner) : owner_(owner) {}
    Admission* owner_;
    int64_t slots_ = 1;
  };

  // Takes one slot for a request that has just arrived; its real need is known after parsing.
  std::optional<Ticket> enter();

  // Expected seconds until so many slots are free, by the pace at which slots were freed: 1 .. 59.
  int retry_after_seconds(int64_t slots = 1) const;

  int64_t slots_max() const { return slots_max_; }
  int64_t held() const;

 private:
  bool take(int64_t slots);
  void give_back(int64_t slots);

  const int64_t slots_max_;
  mutable std::mutex mutex_;
  int64_t held_ = 0;
  Pace pace_;
};

}  // namespace spillway
