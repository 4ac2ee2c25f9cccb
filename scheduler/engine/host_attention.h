// Decode steps over caches whose home is host memory, on a device with memory of its own. Where the
// link is slower than the CPU reads memory, the cache stays where it is: queries, keys and values
// of the step come down, the CPU attends to the cached rows in place (the same op, kernels/cpu) and
// its output goes up. Meanwhile the device computes the next micro-batch: two may be under way.
//
// Owned by the engine; its thread, which computes beside the CPU device's workers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace spillway {

class HostAttention {
 public:
  // Of micro-batches with up to `rows_max` decode steps: bytes of host memory.
  static uint64_t bytes(const ModelShape& shape, DType activation, int64_t rows_max);

  // `compute` is the stream of `device` that makes queries and reads outputs, `host` the CPU. All
  // must outlive this. kCapacity: no room in host memory.
  static Result<std::unique_ptr<HostAttention>> open(Device& device, Stream& compute, Device& host,
                                                     const ModelShape& shape, DType activation,
                                                     int64_t rows_max, Trace* trace);
  ~HostAttention() { abandon(); }

  // Queues the way down of the items' rows of `qkv`, for which the compute stream has its work.
  // Does not block. REQUIRES: decode steps, by ascending row, whose caches are in host memory;
  // `qkv` stays as it is until finish(); less than two are under way.
  void begin(std::span<const AttentionItem> items, const MatrixView& qkv);

  // Of the oldest micro-batch under way: waits for its rows, attends, and queues the output's way
  // up into its rows of `attended`, which the compute stream's later work finds there. Blocks.
  // REQUIRES: all work that used these rows before was queued before begin().
  Status finish(const KvLayout& kv, const MatrixView& attended);

  // Blocks until nothing is under way, and forgets it.
  void abandon();

  uint64_t bytes_down() const { return bytes_down_; }
  uint64_t bytes_up() const { return bytes_up_; }
  uint64_t bytes_attended() const { return bytes_attended_; }  // Keys and values read in place

 private:
  // Rows next to each other in a micro-batch, and so in a slot.
  struct Run {
    int64_t row, slot_row, count;
  };
  struct Slot {
    MatrixView qkv, attended;          // In host memory, the items' rows one behind the other
    std::vector<AttentionItem> items;  // With rows of the slot
    std::vector<Run> runs;
    Event down;
  };

  HostAttention(Device& device, Stream& compute, Device& host, int64_t heads, Trace* trace);
  Status wait(const Slot& slot);

  Stream& compute_;
  std::unique_ptr<Stream> down_, up_, host_;
  const int64_t heads_;
  Trace* trace_;
  Trace::Track track_{};
  Buffer memory_;
  std::array<Slot, 2> slots_;
  size_t first_ = 0, under_way_ = 0;  // Of slots_
  uint64_t bytes_down_ = 0, bytes_up_ = 0, bytes_attended_ = 0;
};

}  // namespace spillway
