// The order of the waiting sequences, and who has how much of the block. Lower priorities first;
// among equal ones those of clients that have none in the block; among these the clients take
// turns, one sequence each, and a client's own run in order of arrival. A new client waits for one
// sequence of each waiting client, however many these have sent.
//
// A sequence that had its turn and is better off later can be held: others have their turns
// meanwhile, and resume() puts it back in front of those of its priority.
//
// An operation takes logarithmic time in the number of waiting clients, whoever it is about: a
// client that leaves costs no walk through all that wait. Only push() and begin() allocate, so that
// the others work when memory runs out. Engine thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
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

  // The next sequence; only a later push(), begin(), end(), hold() and resume() change it.
  // REQUIRES: has_next(), that is, not all are held.
  bool has_next() const { return next_ != turned_.end() || !lines_.empty(); }
  Sequence& front() { return turned_next() ? **next_ : *lines_.begin()->second.waiting.front(); }
  std::unique_ptr<Sequence> pop();

  // Holds the next sequence until resume().
  void hold();
  void resume();

  // Removes that sequence; none: it does not wait.
  Sequences take(RequestId id);

  // Removes all of them.
  Sequences take_all();

  // pop() and begin() of its client. An exception changes nothing.
  std::unique_ptr<Sequence> pop_to_run();

  // A sequence of the client begins to run in the block, or ends there. An exception of begin()
  // changes nothing. REQUIRES of end(): one has begun.
  void begin(uint64_t client);
  void end(uint64_t client);
  // Sequences of the client that run in the block.
  int64_t running(uint64_t client) const;

  // Whether sequences of more than one client have ever waited.
  bool several_clients() const { return several_clients_; }

 private:
  struct Turn {
    int32_t priority;
    bool runs;        // The client has a sequence in the block.
    uint64_t number;  // Counts all turns ever assigned
    auto operator<=>(const Turn&) const = default;
  };
  struct Line {
    uint64_t client;
    Sequences waiting;  // Never empty
  };
  using Lines = std::map<Turn, Line>;
  // Whatever a client has waiting at higher values of priority goes after what it has at the
  // lowest, so that only one of its lines takes part in the order.
  struct Client {
    Turn turn;    // Of its line in lines_, of its lowest priority
    Lines later;  // Its other lines, each with `runs` false
  };
  using Clients = std::map<uint64_t, Client>;

  // Whether the next one has had its turn before.
  bool turned_next() const;
  Sequences take_next();
  void close(Lines::iterator line);
  void show(Client& client, Lines::node_type line, bool runs);
  Lines::iterator later_line(Client& client, int32_t priority);
  void set_runs(uint64_t client, bool runs);

  Lines lines_;
  Clients clients_;                                // Those with a line
  std::unordered_map<uint64_t, int64_t> running_;  // Those with a sequence in the block
  // Those that have had their turns, in this order: those before next_ are held.
  Sequences turned_;
  Sequences::iterator next_ = turned_.end();
  struct Place {
    Sequences::iterator at;
    bool turned = false;  // Else it is in its client's line.
  };
  std::unordered_map<RequestId, Place> by_id_;
  uint64_t last_turn_ = 0;
  std::optional<uint64_t> first_client_;
  bool several_clients_ = false;
};

}  // namespace spillway
