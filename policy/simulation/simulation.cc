#include "policy/simulation/simulation.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "kernels/base/check.h"

namespace spillway {

namespace {

constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

}  // namespace

// The state of one run.
class Simulation::Run {
 public:
  explicit Run(Simulation* of)
      : sim_(*of),
        waits_for_(sim_.tasks_.size()),
        uses_left_(sim_.tasks_.size()),
        ready_(sim_.names_.size()),
        busy_(sim_.names_.size()) {
    sim_.ends_.assign(sim_.tasks_.size(), 0);
    sim_.blocker_.assign(sim_.tasks_.size(), kNobody);
    sim_.busy_.assign(sim_.names_.size(), 0);
    sim_.done_.assign(sim_.names_.size(), {});
    link_followers();
  }

  void run() {
    std::vector<uint32_t> first;
    for (uint32_t task = 0; task < waits_for_.size(); ++task) {
      if (waits_for_[task] == 0) first.push_back(task);
    }
    for (const uint32_t task : first) make_ready(task, 0);
    start_idle(0);
    while (!events_.empty()) {
      const double now = events_.top().first;
      // Process all ends at this instant before any start.
      while (!events_.empty() && events_.top().first == now) {
        const uint32_t use = events_.top().second;
        events_.pop();
        const UseRecord& record = sim_.uses_[use];
        busy_[record.resource] = false;
        touched_.push_back(record.resource);
        if (--uses_left_[record.task] == 0) finish(record.task, now);
      }
      start_idle(now);
    }
    SPILLWAY_CHECK(finished_ == sim_.tasks_.size());  // Tasks only come after earlier ones.
  }

 private:
  // An `after_` list ends where the next record's begins.
  std::pair<uint32_t, uint32_t> after_of(uint32_t task) const {
    const size_t next = task + 1;
    const auto end = next < sim_.tasks_.size() ? sim_.tasks_[next].first_after
                                               : static_cast<uint32_t>(sim_.after_.size());
    return {sim_.tasks_[task].first_after, end};
  }
  std::pair<uint32_t, uint32_t> uses_of(uint32_t task) const {
    const size_t next = task + 1;
    const auto end = next < sim_.tasks_.size() ? sim_.tasks_[next].first_use
                                               : static_cast<uint32_t>(sim_.uses_.size());
    return {sim_.tasks_[task].first_use, end};
  }

  void link_followers() {
    const auto count = static_cast<uint32_t>(sim_.tasks_.size());
    first_follower_.assign(count + 1, 0);
    for (const uint32_t task : sim_.after_) ++first_follower_[task + 1];
    for (size_t i = 0; i < count; ++i) first_follower_[i + 1] += first_follower_[i];
    followers_.resize(sim_.after_.size());
    std::vector<uint32_t> next(first_follower_.begin(), first_follower_.end() - 1);
    for (uint32_t task = 0; task < count; ++task) {
      const auto [from, to] = after_of(task);
      waits_for_[task] = to - from;
      for (uint32_t i = from; i < to; ++i) followers_[next[sim_.after_[i]]++] = task;
    }
  }

  void make_ready(uint32_t task, double now) {
    const auto [from, to] = uses_of(task);
    uses_left_[task] = to - from;
    if (from == to) return finish(task, now);
    for (uint32_t use = from; use < to; ++use) {
      const uint32_t resource = sim_.uses_[use].resource;
      ready_[resource].push({now, use});
      touched_.push_back(resource);
    }
  }

  void finish(uint32_t task, double now) {
    sim_.ends_[task] = now;
    sim_.end_ = std::max(sim_.end_, now);
    ++finished_;
    const auto [from, to] = uses_of(task);
    const uint32_t blocker = from == to ? sim_.blocker_[task] : task;
    for (uint32_t i = first_follower_[task]; i < first_follower_[task + 1]; ++i) {
      const uint32_t follower = followers_[i];
      if (blocker != kNobody) sim_.blocker_[follower] = blocker;
      if (--waits_for_[follower] == 0) make_ready(follower, now);
    }
  }

  void start_idle(double now) {
    for (size_t i = 0; i < touched_.size(); ++i) {
      const uint32_t resource = touched_[i];
      if (busy_[resource] || ready_[resource].empty()) continue;
      const uint32_t use = ready_[resource].top().second;
      ready_[resource].pop();
      busy_[resource] = true;
      UseRecord& record = sim_.uses_[use];
      record.start = now;
      sim_.busy_[resource] += record.seconds;
      sim_.done_[resource].push_back(use);
      events_.push({now + record.seconds, use});
    }
    touched_.clear();
  }

  using Event = std::pair<double, uint32_t>;  // Time and use
  using Earliest = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

  Simulation& sim_;
  std::vector<uint32_t> waits_for_, uses_left_;       // By task
  std::vector<uint32_t> first_follower_, followers_;  // By task: its successors
  std::vector<Earliest> ready_;                       // By resource: ready time and use
  std::vector<bool> busy_;                            // By resource
  std::vector<uint32_t> touched_;                     // Resources that may be able to start a task
  Earliest events_;
  size_t finished_ = 0;
};

Simulation::Resource Simulation::add_resource(std::string name) {
  names_.push_back(std::move(name));
  return Resource{static_cast<uint32_t>(names_.size() - 1)};
}

Simulation::Task Simulation::add(const char* what, std::initializer_list<Use> uses,
                                 std::span<const Task> after, int64_t layer) {
  const auto task = static_cast<uint32_t>(tasks_.size());
  SPILLWAY_CHECK(task < kNobody && ends_.empty());
  tasks_.push_back({what, static_cast<int32_t>(layer), static_cast<uint32_t>(uses_.size()),
                    static_cast<uint32_t>(after_.size())});
  for (const Use& use : uses) {
    SPILLWAY_CHECK(index(use.resource) < names_.size() && use.seconds >= 0);
    uses_.push_back({static_cast<uint32_t>(use.resource), task, use.seconds, 0});
  }
  for (const Task earlier : after) {
    if (earlier == kNone) continue;
    SPILLWAY_CHECK(index(earlier) < task);
    after_.push_back(static_cast<uint32_t>(earlier));
  }
  return Task{task};
}

void Simulation::run() {
  SPILLWAY_CHECK(ends_.empty());
  Run(this).run();
}

std::vector<Simulation::Span> Simulation::spans(Resource resource) const {
  std::vector<Span> found;
  for (const uint32_t use : done_[index(resource)]) {
    const UseRecord& record = uses_[use];
    const Record& task = tasks_[record.task];
    found.push_back({task.what, task.layer, record.start, record.start + record.seconds});
  }
  return found;
}

std::vector<Simulation::Span> Simulation::waits(Resource resource) const {
  std::vector<Span> found;
  double free = 0;
  for (const uint32_t use : done_[index(resource)]) {
    const UseRecord& record = uses_[use];
    // The resource was idle until this task was ready, when its last predecessor ended.
    const uint32_t blocker = blocker_[record.task];
    if (record.start > free && blocker != kNobody) {
      const Record& awaited = tasks_[blocker];
      found.push_back({awaited.what, awaited.layer, free, record.start});
    }
    free = record.start + record.seconds;
  }
  return found;
}

}  // namespace spillway
