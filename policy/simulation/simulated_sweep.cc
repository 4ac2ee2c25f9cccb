#include "policy/simulation/simulated_sweep.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "policy/simulation/simulated_machine.h"

namespace spillway {

namespace {

using Task = Simulation::Task;

// Similar sweeps are divided into at most this many stretches, where not all are simulated.
constexpr int64_t kStretches = 8;

// A simulated sweep, and the share of the run's time it represents: 1 for itself.
struct Chosen {
  PlannedSweeps sweep;
  bool prefill;  // Not after the last sweep with prompts
  double weight = 1;
};

double cost_seconds(const CostedPlan& plan, const MachineRates& rates,
                    const PlannedSweeps& sweeps) {
  return predict(plan, rates, {&sweeps, 1}).seconds();
}

// The i-th of sweeps that are equal except for their cache.
PlannedSweeps nth(const PlannedSweeps& sweeps, int64_t i) {
  PlannedSweeps one = sweeps;
  one.count = 1;
  one.work.cached_rows += sweeps.cached_rows_step * static_cast<double>(i);
  one.cached_rows_step = 0;
  return one;
}

size_t last_prefill(std::span<const PlannedSweeps> sweeps) {
  size_t last = 0;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    if (sweeps[i].work.prompts > 0) last = i;
  }
  return last;
}

// An estimate of a sweep's tasks: each step's weights, cache and activations, both ways.
int64_t tasks_of(const CostedPlan& plan, const PlannedSweeps& sweep) {
  const auto batches = static_cast<int64_t>(planned_micro_batches(plan, sweep.work).size());
  return plan.shape.layers * (24 + 12 * batches);
}

// Simulates all sweeps if they are few enough. Otherwise one in the middle of each stretch of
// similar ones; of too many groups, some are represented by the previous one of their kind.
class Choice {
 public:
  Choice(const CostedPlan& plan, const MachineRates& rates, std::span<const PlannedSweeps> sweeps)
      : plan_(plan), rates_(rates), sweeps_(sweeps), last_prefill_(last_prefill(sweeps)) {}

  std::vector<Chosen> choose(int64_t tasks_max) {
    int64_t tasks = 0, count = 0;
    for (const PlannedSweeps& sweeps : sweeps_) {
      tasks += tasks_of(plan_, sweeps) * sweeps.count;
      count += sweeps.count;
    }
    if (count == 0) return {};
    if (tasks <= tasks_max) {
      for (size_t i = 0; i < sweeps_.size(); ++i) {
        for (int64_t n = 0; n < sweeps_[i].count; ++n) add(i, n, n, n + 1);
      }
      return std::move(chosen_);
    }
    // The share of sweeps that may be simulated.
    share_ = static_cast<double>(std::max<int64_t>(kStretches, tasks_max * count / tasks)) /
             static_cast<double>(count);
    for (size_t i = 0; i < sweeps_.size(); ++i) add_group(i);
    return std::move(chosen_);
  }

 private:
  // The first sweeps of a group profit from prefetches during the sweeps before them, and the last
  // ones have no successor to prefetch for: they do not stand for others.
  static constexpr int64_t kFirst = 3, kLast = 2;

  void add_group(size_t group) {
    const int64_t count = sweeps_[group].count;
    due_ += share_ * static_cast<double>(count);
    Chosen* stands_in = find(group);
    if (stands_in != nullptr && due_ < 1) {
      stands_in->weight += seconds(group, 0, count) / cost_seconds(plan_, rates_, stands_in->sweep);
      return;
    }
    int64_t from = 0, to = count;
    if (count > kFirst + kLast + 1) {
      for (; from < kFirst; ++from) add(group, from, from, from + 1);
      to -= kLast;
    }
    const int64_t stretches =
        std::clamp<int64_t>(static_cast<int64_t>(due_), 1, std::min(kStretches, to - from));
    for (int64_t s = 0; s < stretches; ++s) {
      const int64_t left = from + (to - from) * s / stretches;
      const int64_t right = from + (to - from) * (s + 1) / stretches;
      add(group, (left + right) / 2, left, right);
    }
    for (; to < count; ++to) add(group, to, to, to + 1);
    due_ -= std::min(due_, static_cast<double>(stretches));
  }

  // The last chosen sweep of the same kind.
  Chosen* find(size_t group) {
    for (auto at = chosen_.rbegin(); at != chosen_.rend(); ++at) {
      const bool prompts = sweeps_[group].work.prompt_parts() > 0;
      if ((at->sweep.work.prompt_parts() > 0) != prompts) continue;
      if (at->prefill == (group <= last_prefill_)) return &*at;
    }
    return nullptr;
  }

  double seconds(size_t group, int64_t from, int64_t to) const {
    PlannedSweeps part = nth(sweeps_[group], from);
    part.count = to - from;
    part.cached_rows_step = sweeps_[group].cached_rows_step;
    return cost_seconds(plan_, rates_, part);
  }

  void add(size_t group, int64_t i, int64_t from, int64_t to) {
    Chosen one{nth(sweeps_[group], i), group <= last_prefill_};
    if (to - from > 1) {
      one.weight = seconds(group, from, to) / cost_seconds(plan_, rates_, one.sweep);
    }
    chosen_.push_back(one);
  }

  const CostedPlan& plan_;
  const MachineRates& rates_;
  const std::span<const PlannedSweeps> sweeps_;
  const size_t last_prefill_;
  std::vector<Chosen> chosen_;
  double share_ = 0;  // Share of all sweeps that are simulated
  double due_ = 0;    // Sweeps that may still be simulated
};

// The machines, and the blocks that pass through them.
class Pipeline {
 public:
  Pipeline(Simulation* simulation, const CostedPlan& plan, const MachineRates& rates,
           const StagingRings& rings, const SimulatedCluster& cluster)
      : simulation_(*simulation), plan_(plan), cluster_(cluster) {
    const int64_t count = cluster.machines, layers = plan.shape.layers;
    SPILLWAY_CHECK(count >= 1 && count <= layers);
    for (int64_t m = 0; m < count; ++m) {
      const std::string prefix = count == 1 ? "" : "machine " + std::to_string(m + 1) + ": ";
      const int64_t first = layers * m / count, end = layers * (m + 1) / count;
      machines_.push_back(std::make_unique<SimulatedMachine>(simulation, prefix, plan, rates, rings,
                                                             first, end - first, count));
      if (m + 1 < count) networks_.push_back(simulation_.add_resource(prefix + "network"));
    }
    heads_.assign(static_cast<size_t>(count), Simulation::kNone);
  }

  // Adds a sweep of every block; returns its end.
  Task round(const SweepWork& sweep) {
    const std::vector<MicroBatch> batches = planned_micro_batches(plan_, sweep);
    for (size_t block = 0; block < machines_.size(); ++block) {
      Task begin = heads_[block];  // Its tokens are known then.
      std::vector<Task> arrivals;
      for (size_t m = 0; m < machines_.size(); ++m) {
        arrivals = machines_[m]->pass(sweep, static_cast<int64_t>(block), begin, arrivals);
        begin = Simulation::kNone;  // The next machine begins when activations arrive.
        if (m == networks_.size()) break;
        for (size_t i = 0; i < batches.size(); ++i) arrivals[i] = hop(m, batches[i], arrivals[i]);
      }
      heads_[block] = machines_.back()->head(sweep);
    }
    return simulation_.add("sweep", {}, heads_);
  }

  std::vector<Simulation::Resource> processors() const {
    std::vector<Simulation::Resource> found;
    for (const auto& machine : machines_) found.push_back(machine->processor());
    return found;
  }

 private:
  // Sends a micro-batch's residual stream, float32, to the next machine.
  Task hop(size_t from, const MicroBatch& batch, Task after) {
    const double bytes = 4 * static_cast<double>(plan_.shape.hidden * batch.rows);
    return simulation_.add("activations from the machine before",
                           {{networks_[from], bytes / cluster_.network_bytes_per_second}}, {after});
  }

  Simulation& simulation_;
  const CostedPlan& plan_;
  const SimulatedCluster cluster_;
  std::vector<std::unique_ptr<SimulatedMachine>> machines_;
  std::vector<Simulation::Resource> networks_;
  std::vector<Task> heads_;  // By block: head task of its last sweep
};

}  // namespace

SimulatedRun simulate(const CostedPlan& plan, const MachineRates& rates,
                      std::span<const PlannedSweeps> sweeps, const StagingRings& rings,
                      const SimulatedCluster& cluster, int64_t tasks_max) {
  SimulatedRun run;
  for (const PlannedSweeps& group : sweeps) {
    run.sweeps += group.count;
    run.generated += group.count * (group.work.decoding + group.work.prompts) * cluster.machines;
  }
  const std::vector<Chosen> chosen =
      Choice(plan, rates, sweeps).choose(tasks_max / std::max<int64_t>(1, cluster.machines));
  run.sweeps_simulated = static_cast<int64_t>(chosen.size());
  Pipeline pipeline(&run.timeline, plan, rates, rings, cluster);
  std::vector<SimulatedStretch> stretches;
  for (const Chosen& one : chosen) {
    stretches.push_back({pipeline.round(planned_work(plan, one.sweep)), one.weight, one.prefill});
  }
  run.processors = pipeline.processors();
  finish_run(stretches, &run);
  return run;
}

}  // namespace spillway
