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

// A ring's memory, simulated by the order in which pieces are allocated and released.
class SimulatedRing {
 public:
  explicit SimulatedRing(double bytes) : bytes_(bytes) {}

  // Allocates a piece; returns the task after which there is space for it, or kNone. A piece for
  // which no release frees enough is granted all the same: a ring may exceed its size by one layer.
  Simulation::Task take(double bytes);

  // Frees the oldest unreleased piece after the task. REQUIRES: there is one.
  void release(Simulation::Task after);

 private:
  struct Piece {
    double bytes;
    Simulation::Task released;
  };
  double bytes_, held_ = 0;
  std::deque<Piece> pieces_;  // Oldest first
  size_t released_ = 0;       // Number of released pieces in pieces_
};

class SimulatedMachine {
 public:
  // Runs `layers` layers from `first` on. All references outlive this.
  SimulatedMachine(Simulation* simulation, const std::string& prefix, const CostedPlan& plan,
                   const MachineRates& rates, const StagingRings& rings, int64_t first,
                   int64_t layers, int64_t blocks);

  // Passes every micro-batch of `block` through these layers once. Nothing of the block starts
  // before `begin`. `arrivals`, by micro-batch: when its activations arrive; empty: at once.
  // Returns the tasks after which each micro-batch is done.
  std::vector<Simulation::Task> pass(const SweepWork& sweep, int64_t block, Simulation::Task begin,
                                     const std::vector<Simulation::Task>& arrivals);

  // Computes the sweep's logits, after the last pass's micro-batches.
  Simulation::Task head(const SweepWork& sweep);

  Simulation::Resource processor() const { return processor_; }

 private:
  using Task = Simulation::Task;
  using Tasks = std::vector<Task>;
  static constexpr Task kNone = Simulation::kNone;

  // A micro-batch's work in a layer, in seconds and bytes.
  struct Step {
    double qkv, attention, rest;       // Arithmetic: before, in and after attention
    double rest_of_last;               // `rest` in the model's last layer
    double weights_memory, kv_memory;  // Seconds of reading operands
    double kv_read, kv_sent, stream;   // Bytes
    double kv_down;  // Bytes of the cache written back over the link; kv_sent: written to disk
    double kv_over_link, by_host;  // Shares of the cache: uploaded; attended to by the CPU
    int64_t sequences;
  };
  // The rest of a layer, which waits for the CPU's attention.
  struct Unfinished {
    size_t batch;
    double seconds;
    Task attended;
  };
  // `share_of_layer`: this batch's share of the work done once for all the layer's micro-batches.
  Step step_of(const SweepWork& sweep, const MicroBatch& batch, double share_of_layer) const;
  Task compute(const char* what, double seconds, Tasks after);
  Task transfer(const char* what, Simulation::Resource link, double bytes, double rate,
                Tasks after);
  Task add(const char* what, std::initializer_list<Simulation::Use> uses, Tasks after);
  Task upload_weights();
  void release_weights(Task used);
  Task upload_rows(const Step& step, size_t batch, Task begin);
  void write_back_rows(const Step& step, size_t batch, Task done);
  std::optional<Unfinished> run_step(const Step& step, size_t batch, Task begin,
                                     const Tasks& needed, Task before, Task* written_back);
  Task attend_on_host(const Step& step);
  void finish(const Unfinished& rest, const std::vector<Step>& steps, Tasks* done);
  Task upload_cache(const Step& step, double parts, Task begin, Task written_back);
  void write_back_cache(const Step& step, double parts, Task done, Task* written_back);

  Simulation& simulation_;
  const CostedPlan& plan_;
  const MachineRates& rates_;
  const int64_t first_, layers_;
  const std::vector<LinearShape> linears_;
  double qkv_share_ = 0;  // QKV's share of a layer's elements
  Simulation::Resource processor_{}, disk_read_{}, disk_write_{}, up_{}, down_{}, host_memory_{},
      host_{};
  SimulatedRing weights_disk_, weights_device_, kv_disk_, kv_device_, rows_disk_, rows_device_;
  const StagingRings rings_;

  int64_t layer_ = 0;              // The layer whose tasks are being added
  Task previous_ = kNone;          // Without overlap: the predecessor of the next task
  Task last_step_ = kNone;         // The processor's last task
  Task last_write_back_ = kNone;   // The last write-back of cache from the device
  Task last_upload_ = kNone;       // The last upload of weights
  std::deque<Task> weight_reads_;  // The last few disk reads
  size_t weight_pieces_ = 0;       // The layer's pieces in the ring that its work uses
  // By block and layer: end of the cache's write-back
  std::vector<std::vector<Task>> cache_written_back_;
  // By micro-batch of the pass: end of the activations' write-back
  std::vector<Task> rows_written_back_;
};

}  // namespace spillway
