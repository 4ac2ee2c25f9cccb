// The order of the waiting sequences. Lower priorities first; among equal ones the clients take
// turns, one sequence each, and a client's own run in order of arrival. A new client waits for one
// sequence of each waiting client, however many these have sent.
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

  // The next sequence; only a later push() of a lower priority changes it. REQUIRES: not empty.
  Sequence& front() { return *lines_.begin()->second.waiting.front(); }
  std::unique_ptr<Sequence> pop();

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

  Sequences take(Lines::iterator line, Sequences::iterator sequence);
  void close(Lines::iterator line);

  Lines lines_;
  std::map<Who, Turn> turns_;  // The turn of each line
  std::unordered_map<RequestId, Sequences::iterator> by_id_;
  uint64_t last_turn_ = 0;
};

}  // namespace spillway
