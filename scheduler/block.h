// The sequences of the block: those that run, and those set aside. It gives them room in the KV
// cache as they grow, and decides who gives way to whom, whether for want of memory or of places.
//
// One order answers both questions. Who has the higher value of priority gives way first; among
// equals the client with the most sequences that run; among its own the youngest. Those set aside
// come back in the opposite order, before any other of their priority begins, except those of
// clients that have nothing in the block while theirs has.
//
// A waiting sequence takes a place from others only if its client has none and theirs has two or
// more, or if their priority value is higher and they are another client's. So nobody waits for the
// end of all that somebody else has sent, no client loses its last sequence to an equal one, and a
// client that is alone (as in an offline batch) loses nothing.
//
// Only sequences that keep every row of their KV cache can be set aside, and only where there is
// scratch space for it (KvNeeds::grows()). Where none can, a place is kept: keeps_place().
//
// Owned by the scheduler. Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "policy/batching.h"
#include "scheduler/kv_room.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"

namespace spillway {

// The status for an allocation that fails outside of a sweep: it ends requests, not the process.
Status out_of_memory(const std::exception& error);

class Block {
 public:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  // `limits`: of places and of KV bytes. `retire` reports the sequences that have ended and removes
  // them. `room` and `waiting` outlive the block.
  Block(KvRoom& room, WaitingQueue& waiting, const SweepLimits& limits,
        std::function<void()> retire);

  const Sequences& running() const { return running_; }  // In the order of their admission
  const Sequences& aside() const { return aside_; }
  bool empty() const { return running_.empty() && aside_.empty(); }
  bool full() const { return places() <= 0; }
  uint64_t times_set_aside() const { return times_set_aside_; }

  // ---- Between sweeps ----

  // Gives every running sequence the blocks for its next token and the one after, which is read
  // ahead, and, where there is room, for a draft. Where there are not enough for the next token,
  // some are set aside. False: some were.
  bool make_room();

  // Sums up what the sequences need, for the functions below; call it before them in each sweep.
  void count_needs();
  // What those that run are likely to need, beside what others share, and what all may ever need.
  // REQUIRES: sequences get their cache as they grow; else both are 0.
  uint64_t likely_bytes() const { return likely_bytes_; }
  uint64_t promised_bytes() const { return promised_bytes_; }

  // Whether one that is set aside goes before the next waiting sequence. REQUIRES: some are aside,
  // and one waits.
  bool aside_goes_first() const;
  // Brings the first one back; false: there is no place or no room for what it will likely need,
  // and others run.
  bool bring_back();

  // Whether the last place is kept for a client that has none, where nobody can be set aside to
  // make one. Blocks of a few sequences keep none: it would be a large part of them.
  bool keeps_place(const Sequence& next) const;

  // Whether make_way() might do something for the next waiting sequence.
  bool may_make_way(const Sequence& next) const;
  // Sets others aside so that `next` can join; false: none were, because that would not be enough,
  // or failed. `joins`: whether it does with so many sequences running and so many bytes fewer.
  using Joins = std::function<bool(int64_t sequences, uint64_t bytes_less)>;
  bool make_way(const Sequence& next, const Joins& joins);
  // It was admitted by all figures, and there was no room: others are not set aside for it again.
  void note_no_room(const Sequence& next) { no_room_for_ = next.id(); }

  // The next waiting sequence, which has been admitted to the cache, runs. An exception changes
  // nothing.
  void enter_next();

  // The sequences that have ended, until remove(). Neither allocates.
  struct Ended {
    std::span<const std::unique_ptr<Sequence>> running, aside;
  };
  Ended find_ended();
  void remove(const Ended& ended);

 private:
  int64_t places() const { return sequences_max_ - static_cast<int64_t>(running_.size()); }
  bool can_leave(const Sequence& sequence) const;
  bool takes_place_of(const Sequence& next, const Sequence& other) const;
  std::vector<Sequence*> who_makes_way(const Sequence& next, const Joins& joins) const;
  size_t first_to_leave() const;
  size_t first_back() const;
  bool grow(Sequence& sequence);
  Status set_aside(size_t index);

  KvRoom& room_;
  KvNeeds& needs_;
  WaitingQueue& waiting_;
  const int64_t sequences_max_;
  const uint64_t kv_bytes_;
  const std::function<void()> retire_;
  Sequences running_, aside_;
  uint64_t times_set_aside_ = 0;
  uint64_t likely_bytes_ = 0, promised_bytes_ = 0;
  RequestId no_room_for_{};
};

}  // namespace spillway
