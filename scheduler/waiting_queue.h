// Which of the waiting sequences runs next. Lower priorities first; among equal ones the clients
// take turns, one sequence each, and a client's own run in the order in which they came. Who joins
// waits for one sequence of each client that is there already, however many these have sent.
//
// A step takes a logarithm of the number of clients that wait. Only push() takes memory, so that
// what must work without any does. Engine thread only.
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

  // An exception leaves the queue as it was.
  void push(std::unique_ptr<Sequence> sequence);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // Whose turn it is; only a sequence of lower priority that comes later changes that. REQUIRES:
  // not empty.
  Sequence& front() { return *lines_.begin()->second.waiting.front(); }
  std::unique_ptr<Sequence> pop();

  void for_each(const std::function<void(Sequence&)>& visit);

  // Takes out those that have finished.
  Sequences take_finished();

 private:
  struct Who {
    int32_t priority;
    uint64_t client;
    auto operator<=>(const Who&) const = default;
  };
  struct Turn {
    int32_t priority;
    uint64_t number;  // Of all turns that were ever given
    auto operator<=>(const Turn&) const = default;
  };
  struct Line {
    uint64_t client;
    Sequences waiting;  // Never empty
  };

  std::map<Turn, Line> lines_;
  std::map<Who, Turn> turns_;  // Of each line
  uint64_t last_turn_ = 0;
  size_t size_ = 0;
};

}  // namespace spillway
