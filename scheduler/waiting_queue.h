// The order of the waiting sequences. Lower priorities first; among equal ones the clients take
// turns, one sequence each, and a client's own run in order of arrival. A new client waits for one
// sequence of each waiting client, however many these have sent.
//
// An operation takes logarithmic time in the number of waiting clients. Only push() allocates, so
// that the others work when memory runs out. Engine thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>

#include "scheduler/sequence.h"

namespace spillway {

class WaitingQueue {
 public:
  using Sequences = std::list<std::unique_ptr<Sequence>>;

  // An exception leaves the queue unchanged.
  void push(std::unique_ptr<Sequence> sequence);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // The next sequence; only a later push() of a lower priority changes it. REQUIRES: not empty.
  Sequence& front() { return *lines_.begin()->second.waiting.front(); }
  std::unique_ptr<Sequence> pop();

  void for_each(const std::function<void(Sequence&)>& visit);

  // Removes the finished sequences.
  Sequences take_finished();

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

  std::map<Turn, Line> lines_;
  std::map<Who, Turn> turns_;  // The turn of each line
  uint64_t last_turn_ = 0;
  size_t size_ = 0;
};

}  // namespace spillway
