#include "scheduler/waiting_queue.h"

#include <utility>

#include "kernels/base/check.h"

namespace spillway {

void WaitingQueue::push(std::unique_ptr<Sequence> sequence) {
  const int32_t priority = sequence->priority();
  const uint64_t client = sequence->client();
  const RequestId id = sequence->id();
  Sequences one;
  one.push_back(std::move(sequence));
  // All nodes are allocated before the first is inserted, and only the table of ids, which comes
  // first, allocates when it is.
  const auto known = clients_.find(client);
  const bool has_line =
      known != clients_.end() && (known->second.turn.priority == priority ||
                                  later_line(known->second, priority) != known->second.later.end());
  Lines fresh;
  Clients entry;
  if (!has_line) fresh.try_emplace({priority, false, last_turn_ + 1}, Line{client, {}});
  if (known == clients_.end()) entry.try_emplace(client);
  by_id_.emplace(id, Place{one.begin()});
  several_clients_ |= first_client_.value_or(client) != client;
  first_client_ = first_client_.value_or(client);
  if (has_line) {
    Client& owner = known->second;
    const auto line =
        owner.turn.priority == priority ? lines_.find(owner.turn) : later_line(owner, priority);
    line->second.waiting.splice(line->second.waiting.end(), one);
    return;
  }
  ++last_turn_;
  fresh.begin()->second.waiting.splice(fresh.begin()->second.waiting.end(), one);
  Lines::node_type line = fresh.extract(fresh.begin());
  if (known == clients_.end()) {
    clients_.merge(entry);
    show(clients_.find(client)->second, std::move(line), running(client) > 0);
  } else if (priority > known->second.turn.priority) {
    known->second.later.insert(std::move(line));
  } else {
    Lines::node_type shown = lines_.extract(known->second.turn);
    shown.key().runs = false;
    known->second.later.insert(std::move(shown));
    show(known->second, std::move(line), running(client) > 0);
  }
}

// Lets a line of the client take part in the order.
void WaitingQueue::show(Client& client, Lines::node_type line, bool runs) {
  line.key().runs = runs;
  client.turn = line.key();
  lines_.insert(std::move(line));
}

WaitingQueue::Lines::iterator WaitingQueue::later_line(Client& client, int32_t priority) {
  const auto line = client.later.lower_bound({priority, false, 0});
  const bool found = line != client.later.end() && line->first.priority == priority;
  return found ? line : client.later.end();
}

// Removes an empty line that takes part in the order; the client's next one takes its place.
void WaitingQueue::close(Lines::iterator line) {
  const auto client = clients_.find(line->second.client);
  lines_.erase(line);
  Lines& later = client->second.later;
  if (later.empty()) {
    clients_.erase(client);
  } else {
    show(client->second, later.extract(later.begin()), running(client->first) > 0);
  }
}

bool WaitingQueue::turned_next() const {
  if (next_ == turned_.end() || lines_.empty()) return next_ != turned_.end();
  const Sequence& turned = **next_;
  const Turn& first = lines_.begin()->first;
  if (turned.priority() != first.priority) return turned.priority() < first.priority;
  return first.runs || running(turned.client()) == 0;
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

// Those of clients with none in the block go first, so that they do not wait behind others that
// find no room.
void WaitingQueue::resume() {
  turned_.sort([&](const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
    if (a->priority() != b->priority()) return a->priority() < b->priority();
    return running(a->client()) == 0 && running(b->client()) > 0;
  });
  next_ = turned_.begin();
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
    Client& client = clients_.find(first->second.client)->second;
    Lines::node_type line = lines_.extract(first);
    const bool runs = line.key().runs;
    line.key().number = ++last_turn_;
    show(client, std::move(line), runs);
  }
  return one;
}

WaitingQueue::Sequences WaitingQueue::take(RequestId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return {};
  const Place place = found->second;
  const int32_t priority = (*place.at)->priority();
  const uint64_t owner = (*place.at)->client();
  by_id_.erase(found);
  Sequences one;
  if (place.turned) {
    if (next_ == place.at) ++next_;
    one.splice(one.end(), turned_, place.at);
    return one;
  }
  Client& client = clients_.find(owner)->second;
  const bool shown = client.turn.priority == priority;
  const auto line = shown ? lines_.find(client.turn) : later_line(client, priority);
  one.splice(one.end(), line->second.waiting, place.at);
  if (!line->second.waiting.empty()) return one;
  if (shown) {
    close(line);
  } else {
    client.later.erase(line);
  }
  return one;
}

WaitingQueue::Sequences WaitingQueue::take_all() {
  Sequences all;
  all.splice(all.end(), turned_);
  next_ = turned_.end();
  for (auto& [turn, line] : lines_) all.splice(all.end(), line.waiting);
  for (auto& [id, client] : clients_) {
    for (auto& [turn, line] : client.later) all.splice(all.end(), line.waiting);
  }
  lines_.clear();
  clients_.clear();
  by_id_.clear();
  return all;
}

std::unique_ptr<Sequence> WaitingQueue::pop_to_run() {
  const uint64_t client = front().client();
  running_.try_emplace(client, 0);  // All that allocates; the order is still that of front().
  std::unique_ptr<Sequence> sequence = pop();
  begin(client);
  return sequence;
}

void WaitingQueue::begin(uint64_t client) {
  if (++running_[client] == 1) set_runs(client, true);
}

void WaitingQueue::end(uint64_t client) {
  const auto found = running_.find(client);
  SPILLWAY_CHECK(found != running_.end());
  if (--found->second > 0) return;
  running_.erase(found);
  set_runs(client, false);
}

int64_t WaitingQueue::running(uint64_t client) const {
  const auto found = running_.find(client);
  return found == running_.end() ? 0 : found->second;
}

void WaitingQueue::set_runs(uint64_t client, bool runs) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  show(found->second, lines_.extract(found->second.turn), runs);
}

}  // namespace spillway
