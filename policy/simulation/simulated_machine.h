// One machine of a simulated run (simulated_sweep.h): its resources, its rings and the tasks of a
// block's pass over its layers. Used by simulated_sweep.cc; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "policy/bound.h"
#include "policy/cost_model.h"
#include "policy/simulation/simulated_sweep.h"
#include "policy/simulation/simulation.h"

namespace spillway {

// Memory of a ring as the order in which its pieces come and go.
class SimulatedRing {
 public:
  explicit SimulatedRing(double bytes) : bytes_(bytes) {}

  // Room for a piece: the task after which it is there, or kNone. What no release frees in time is
  // lent beyond the ring's bytes: a ring holds one group at least.
  Simulation::Task take(double bytes);

  // The oldest piece that was not released is free after the task. REQUIRES: there is one.
  void release(Simulation::Task after);

 private:
  struct Piece {
    double bytes;
    Simulation::Task released;
  };
  double bytes_, held_ = 0;
  std::deque<Piece> pieces_;  // Oldest first
  size_t released_ = 0;       // Of them
};

class SimulatedMachine {
 public:
  // Of `layers` layers from `first` on. All references outlive this.
  SimulatedMachine(Simulation* simulation, const std::string& prefix, const CostedPlan& plan,
                   const MachineRates& rates, const StagingRings& rings, int64_t first,
                   int64_t layers, int64_t blocks);

  // Every micro-batch of `block` through these layers once. `begin`: before it, nothing of the
  // block is known. `arrivals`, by micro-batch: when its activations are here; none: at once. The
  // tasks after which each micro-batch is done.
  std::vector<Simulation::Task> pass(const SweepWork& sweep, int64_t block, Simulation::Task begin,
                                     const std::vector<Simulation::Task>& arrivals);

  // The sweep's logits, after the last pass's micro-batches.
  Simulation::Task head(const SweepWork& sweep);

  Simulation::Resource processor() const { return processor_; }

 private:
  using Task = Simulation::Task;
  using Tasks = std::vector<Task>;
  static constexpr Task kNone = Simulation::kNone;

  // A micro-batch's part of a layer, in seconds and bytes.
  struct Step {
    double qkv, attention, rest;       // Of arithmetic: products before and behind attention
    double rest_of_last;               // In the model's last layer
    double weights_memory, kv_memory;  // Of reading operands
    double kv_read, kv_sent, stream;   // Bytes
    double kv_down;                    // Of the cache, over the link; kv_sent: to the disk
    double kv_from_host, by_host;      // Shares of the cache: over the link; attended to by the CPU
    int64_t sequences;
  };
  // The rest of a layer, which waits for what the CPU attends to.
  struct Unfinished {
    size_t batch;
    double seconds;
    Task attended;
  };
  // `share_of_layer`: of what the layer's micro-batches do once together.
  Step step_of(const SweepWork& sweep, const MicroBatch& batch, double share_of_layer) const;
  Task compute(const char* what, double seconds, Tasks after);
  Task transfer(const char* what, Simulation::Resource link, double bytes, double rate,
                Tasks after);
  Task add(const char* what, std::initializer_list<Simulation::Use> uses, Tasks after);
  Task upload_weights();
  void release_weights(Task used);
  Task upload_rows(const Step& step, size_t batch, Task begin);
  void send_rows(const Step& step, size_t batch, Task done);
  std::optional<Unfinished> run_step(const Step& step, size_t batch, Task begin,
                                     const Tasks& needed, Task before, Task* home);
  Task attend_on_host(const Step& step);
  void finish(const Unfinished& rest, const std::vector<Step>& steps, Tasks* done);
  Task upload_cache(const Step& step, double parts, Task begin, Task home);
  void send_cache(const Step& step, double parts, Task done, Task* home);

  Simulation& simulation_;
  const CostedPlan& plan_;
  const MachineRates& rates_;
  const int64_t first_, layers_;
  const std::vector<LinearShape> linears_;
  double qkv_share_ = 0;  // Of a layer's elements
  Simulation::Resource processor_{}, disk_read_{}, disk_write_{}, up_{}, down_{}, host_memory_{},
      host_{};
  SimulatedRing weights_disk_, weights_device_, kv_disk_, kv_device_, rows_disk_, rows_device_;
  const StagingRings rings_;

  int64_t layer_ = 0;              // That is being added
  Task previous_ = kNone;          // Without overlap: what comes before whatever is added
  Task last_step_ = kNone;         // Of the processor
  Task last_home_ = kNone;         // The last cache out of the device
  Task last_upload_ = kNone;       // Of weights
  std::deque<Task> weight_reads_;  // Of the disk, the last few
  size_t weight_pieces_ = 0;       // Of the layer, in the ring that its work uses
  std::vector<std::vector<Task>> cache_home_;  // By block and layer: when its cache is home
  std::vector<Task> rows_home_;                // By micro-batch of the pass
};

}  // namespace spillway
