#include "scheduler/waiting_queue.h"

#include <utility>

namespace spillway {

void WaitingQueue::push(std::unique_ptr<Sequence> sequence) {
  const Who who = {sequence->priority(), sequence->client()};
  const RequestId id = sequence->id();
  Sequences one;
  one.push_back(std::move(sequence));
  // All nodes are allocated before the first is inserted, and only the table of ids, which comes
  // first, allocates when it is.
  Lines line;
  std::map<Who, Turn> entry;
  auto turn = turns_.find(who);
  if (turn == turns_.end()) {
    const Turn next = {who.priority, last_turn_ + 1};
    line.try_emplace(next, Line{who.client, {}});
    entry.emplace(who, next);
  }
  by_id_.emplace(id, Place{one.begin()});
  if (turn == turns_.end()) {
    ++last_turn_;
    lines_.merge(line);
    turns_.merge(entry);
    turn = turns_.find(who);
  }
  Sequences& waiting = lines_.find(turn->second)->second.waiting;
  waiting.splice(waiting.end(), one);
}

// Removes an empty line, and with it the client's turn.
void WaitingQueue::close(Lines::iterator line) {
  turns_.erase({line->first.priority, line->second.client});
  lines_.erase(line);
}

std::unique_ptr<Sequence> WaitingQueue::pop() {
  Sequences one = take_next();
  by_id_.erase(one.front()->id());
  return std::move(one.front());
}

void WaitingQueue::hold() {
  if (turned_next()) {
    ++next_;
    return;
  }
  Sequences one = take_next();
  by_id_.at(one.front()->id()).turned = true;
  turned_.splice(next_, one);
}

// Takes the next sequence, which keeps its entry in by_id_.
WaitingQueue::Sequences WaitingQueue::take_next() {
  Sequences one;
  if (turned_next()) {
    const auto at = next_++;
    one.splice(one.end(), turned_, at);
    return one;
  }
  const auto first = lines_.begin();
  Sequences& waiting = first->second.waiting;
  one.splice(one.end(), waiting, waiting.begin());
  if (waiting.empty()) {
    close(first);
  } else {
    // Moves the line to the end of its priority by its node, without allocating.
    const auto turn = turns_.find({first->first.priority, first->second.client});
    auto line = lines_.extract(first);
    line.key().number = ++last_turn_;
    turn->second = line.key();
    lines_.insert(std::move(line));
  }
  return one;
}

WaitingQueue::Sequences WaitingQueue::take(RequestId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return {};
  const Place place = found->second;
  const Sequence& sequence = **place.at;
  by_id_.erase(found);
  Sequences one;
  if (place.turned) {
    if (next_ == place.at) ++next_;
    one.splice(one.end(), turned_, place.at);
    return one;
  }
  const auto line = lines_.find(turns_.at({sequence.priority(), sequence.client()}));
  one.splice(one.end(), line->second.waiting, place.at);
  if (line->second.waiting.empty()) close(line);
  return one;
}

WaitingQueue::Sequences WaitingQueue::take_all() {
  Sequences all;
  all.splice(all.end(), turned_);
  next_ = turned_.end();
  for (auto& [turn, line] : lines_) all.splice(all.end(), line.waiting);
  lines_.clear();
  turns_.clear();
  by_id_.clear();
  return all;
}

}  // namespace spillway
