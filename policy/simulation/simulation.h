// A discrete-event simulation: tasks take time on resources (links, processors) and wait for one
// another. A resource runs one task at a time, in the order in which tasks become ready; tasks that
// become ready at once run in the order in which they were added. It is never idle while one is
// ready. So equal tasks always give the same run. Knows nothing of models.
//
// Owned by whoever adds the tasks; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace spillway {

class Simulation {
 public:
  enum class Resource : uint32_t {};
  enum class Task : uint32_t {};
  static constexpr Task kNone{std::numeric_limits<uint32_t>::max()};

  // A task's use of a resource. A task with several uses ends with the last; each use queues alone.
  struct Use {
    Resource resource;
    double seconds;
  };

  Resource add_resource(std::string name);

  // Adds a task that begins when those in `after` have ended (kNone is ignored). `what` describes
  // the work or transfer and outlives the simulation (a string literal). Without uses it takes no
  // time and only names the end of several tasks. REQUIRES: seconds >= 0; not after run().
  Task add(const char* what, std::initializer_list<Use> uses, std::span<const Task> after,
           int64_t layer = -1);
  Task add(const char* what, std::initializer_list<Use> uses, std::initializer_list<Task> after,
           int64_t layer = -1) {
    return add(what, uses, std::span(after.begin(), after.size()), layer);
  }

  void run();  // Once

  // After run(). Seconds from the first task's start.
  double end(Task task) const { return ends_[index(task)]; }
  double end() const { return end_; }

  size_t tasks() const { return tasks_.size(); }
  size_t resources() const { return names_.size(); }
  const std::string& name(Resource resource) const { return names_[index(resource)]; }
  double busy(Resource resource) const { return busy_[index(resource)]; }

  // Busy spans of a resource, in order.
  struct Span {
    const char* what;
    int64_t layer;  // -1: no layer
    double start, end;
  };
  std::vector<Span> spans(Resource resource) const;

  // Idle spans of a resource between its tasks or before the first, named after the cause: the task
  // that ended last among those the next one waited for.
  std::vector<Span> waits(Resource resource) const;

 private:
  template <class Id>
  static size_t index(Id id) {
    return static_cast<size_t>(id);
  }
  struct Record {
    const char* what;
    int32_t layer;
    uint32_t first_use, first_after;  // Ends at the next record's
  };
  struct UseRecord {
    uint32_t resource, task;
    double seconds, start;
  };
  class Run;

  std::vector<std::string> names_;
  std::vector<Record> tasks_;
  std::vector<UseRecord> uses_;
  std::vector<uint32_t> after_;
  // Filled by run().
  std::vector<double> ends_, busy_;
  std::vector<uint32_t> blocker_;  // By task: the last predecessor (with uses) to end, or kNone
  std::vector<std::vector<uint32_t>> done_;  // By resource: its uses in order
  double end_ = 0;
};

}  // namespace spillway
