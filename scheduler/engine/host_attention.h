// CPU attention for decode steps over caches that live in host memory, on a discrete device. Where
// the link is slower than the CPU reads memory, the cache stays in place: the step's queries, keys
// and values are copied to the host (d2h), the CPU attends to the cached rows in place (the same
// op, kernels/cpu) and its output is uploaded (h2d). Meanwhile the device computes the next
// micro-batch: two may be under way.
//
// Owned by the engine. Thread rule: the engine thread, which computes beside the CPU device's
// workers.
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
  // Bytes of host memory for micro-batches with decode steps of up to `rows_max` rows.
  static uint64_t bytes(const ModelShape& shape, DType activation, int64_t rows_max);

  // `compute` is the stream of `device` that makes queries and reads outputs, `host` the CPU. All
  // must outlive the object. kCapacity: not enough host memory.
  static Result<std::unique_ptr<HostAttention>> open(Device& device, Stream& compute, Device& host,
                                                     const ModelShape& shape, DType activation,
                                                     int64_t rows_max, Trace* trace);
  ~HostAttention() { abandon(); }

  // Queues the d2h copy of the items' rows of `qkv`, after the work that the compute stream has for
  // them. Does not block. REQUIRES: decode steps, by ascending row, whose caches are in host
  // memory; `qkv` stays as it is until finish(); less than two are under way.
  void begin(std::span<const AttentionItem> items, const MatrixView& qkv);

  // Finishes the oldest micro-batch under way: waits for its rows, attends, and queues the upload
  // of the output into its rows of `attended`, for which the compute stream's later work waits.
  // Blocks. REQUIRES: all work that used these rows before was queued before begin().
  Status finish(const KvLayout& kv, const MatrixView& attended);

  // Blocks until nothing is under way, and drops all micro-batches.
  void abandon();

  uint64_t bytes_down() const { return bytes_down_; }
  uint64_t bytes_up() const { return bytes_up_; }
  uint64_t bytes_attended() const { return bytes_attended_; }  // Keys and values read in place

 private:
  // Rows that are contiguous in a micro-batch and in a slot.
  struct Run {
    int64_t row, slot_row, count;
  };
  struct Slot {
    MatrixView qkv, attended;          // In host memory, the items' rows contiguous
    std::vector<AttentionItem> items;  // Their rows are the slot's
    std::vector<Run> runs;
    int64_t rows = 0;  // Of the items
    Event down;
  };

  HostAttention(Device& device, Stream& compute, Device& host, const ModelShape& shape,
                Trace* trace);
  Status wait(const Slot& slot);

  Stream& compute_;
  std::unique_ptr<Stream> down_, up_, host_;
  const int64_t heads_;
  const float scale_;  // AttentionArgs::scale
  Trace* trace_;
  Trace::Track track_{};
  Buffer memory_;
  std::array<Slot, 2> slots_;
  size_t first_ = 0, under_way_ = 0;  // The oldest of slots_; how many are in use
  uint64_t bytes_down_ = 0, bytes_up_ = 0, bytes_attended_ = 0;
};

}  // namespace spillway
