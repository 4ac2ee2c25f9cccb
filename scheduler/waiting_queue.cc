#include "scheduler/waiting_queue.h"

#include <iterator>
#include <utility>

namespace spillway {

void WaitingQueue::push(std::unique_ptr<Sequence> sequence) {
  const Who who = {sequence->priority(), sequence->client()};
  Sequences one;
  one.push_back(std::move(sequence));
  auto turn = turns_.find(who);
  if (turn == turns_.end()) {
    // Both nodes are allocated before either is inserted, since inserting cannot fail.
    const Turn next = {who.priority, last_turn_ + 1};
    std::map<Turn, Line> line;
    line.try_emplace(next, Line{who.client, {}});
    std::map<Who, Turn> entry;
    entry.emplace(who, next);
    ++last_turn_;
    lines_.merge(line);
    turns_.merge(entry);
    turn = turns_.find(who);
  }
  Sequences& waiting = lines_.find(turn->second)->second.waiting;
  waiting.splice(waiting.end(), one);
  ++size_;
}

std::unique_ptr<Sequence> WaitingQueue::pop() {
  const auto first = lines_.begin();
  Sequences& waiting = first->second.waiting;
  std::unique_ptr<Sequence> sequence = std::move(waiting.front());
  waiting.pop_front();
  --size_;
  const auto turn = turns_.find({first->first.priority, first->second.client});
  if (waiting.empty()) {
    turns_.erase(turn);
    lines_.erase(first);
  } else {
    // Moves the line to the end of its priority by its node, without allocating.
    auto line = lines_.extract(first);
    line.key().number = ++last_turn_;
    turn->second = line.key();
    lines_.insert(std::move(line));
  }
  return sequence;
}

void WaitingQueue::for_each(const std::function<void(Sequence&)>& visit) {
  for (auto& [turn, line] : lines_) {
    for (const std::unique_ptr<Sequence>& sequence : line.waiting) visit(*sequence);
  }
}

WaitingQueue::Sequences WaitingQueue::take_finished() {
  Sequences finished;
  for (auto line = lines_.begin(); line != lines_.end();) {
    Sequences& waiting = line->second.waiting;
    for (auto at = waiting.begin(); at != waiting.end();) {
      const auto sequence = at++;
      if ((*sequence)->finished()) finished.splice(finished.end(), waiting, sequence);
    }
    if (!waiting.empty()) {
      ++line;
      continue;
    }
    turns_.erase({line->first.priority, line->second.client});
    line = lines_.erase(line);
  }
  size_ -= finished.size();
  return finished;
}

}  // namespace spillway
