// The order of the waiting sequences. Lower priorities first; among equal ones the clients take
// turns, one sequence each, and a client's own run in order of arrival. A new client waits for one
// sequence of each waiting client, however many these have sent.
//
// A sequence that had its turn and is better off later can be held: others have their turns
// meanwhile, and resume() puts it back in front of those of its priority.
//
// An operation takes logarithmic time in the number of waiting clients, whoever it is about: a
// client that leaves costs no walk through all that wait. Only push() allocates, so that the others
// work when memory runs out. Engine thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "scheduler/sequence.h"

namespace spillway {

class WaitingQueue {
 public:
  using Sequences = std::list<std::unique_ptr<Sequence>>;

  // An exception leaves the queue unchanged.
  void push(std::unique_ptr<Sequence> sequence);

  bool empty() const { return by_id_.empty(); }
  size_t size() const { return by_id_.size(); }

  // The next sequence; only a later push() of a lower priority, hold() and resume() change it.
  // REQUIRES: has_next(), that is, not all are held.
  bool has_next() const { return next_ != turned_.end() || !lines_.empty(); }
  Sequence& front() { return turned_next() ? **next_ : *lines_.begin()->second.waiting.front(); }
  std::unique_ptr<Sequence> pop();

  // Holds the next sequence until resume().
  void hold();
  void resume() { next_ = turned_.begin(); }

  // Removes that sequence; none: it does not wait.
  Sequences take(RequestId id);

  // Removes all of them.
  Sequences take_all();

 private:
  struct Who {
    int32_t priority;
    uint64_t client;
    auto operator<=>(const Who&) const = default;
  };
  struct Turn {
    int32_t priority;
    uint64_t number;  // Counts all turns ever assigned
    auto operator<=>(const Turn&) const = default;
  };
  struct Line {
    uint64_t client;
    Sequences waiting;  // Never empty
  };

  using Lines = std::map<Turn, Line>;

  // Whether the next one has had its turn before.
  bool turned_next() const {
    return next_ != turned_.end() &&
           (lines_.empty() || (*next_)->priority() <= lines_.begin()->first.priority);
  }
  Sequences take_next();
  void close(Lines::iterator line);

  Lines lines_;
  std::map<Who, Turn> turns_;  // The turn of each line
  // Those that have had their turns, in this order: those before next_ are held.
  Sequences turned_;
  Sequences::iterator next_ = turned_.end();
  struct Place {
    Sequences::iterator at;
    bool turned = false;  // Else it is in its client's line.
  };
  std::unordered_map<RequestId, Place> by_id_;
  uint64_t last_turn_ = 0;
};

}  // namespace spillway
