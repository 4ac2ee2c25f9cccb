// The bounds of a run: how long its sweeps must have taken on this machine, from rates measured
// around it: `bound` of `bench --json`. Pure arithmetic, any thread.
//
// A resource's time is the work that was needed at the most that the resource can do. Two bounds
// are made of such times:
//
//   sweep by sweep       every sweep takes as long as its slowest resource, one sweep after the
//                        other: `seconds`. A schedule that works for the next sweep during this one
//                        (as the engine reads ahead) can beat it.
//   any schedule         no resource can do its work of the whole run in less:
//                        `seconds_any_schedule`.
//
// The resources:
//
//   compute     the matrix products and attention of prompts. Of the last layer only what reaches
//               logits is needed: keys and values of all rows, all else of the rows that the head
//               reads (and all rows' queries where their scores decide what a cache keeps).
//   memory      what the kernels read: every weight once, whichever tier it came from, and the
//               cached rows of decode, but for those that the CPU reads in a device's place, which
//               are held against nothing. Transfers from and to disk are DMA past the cores, whose
//               reading rate the ceiling is, so they are not counted here.
//   host to device, device to host   the bytes over each direction of that link, where the device
//               has memory of its own
//   disk read, disk write   the bytes over each link. One device serves both, yet each is held
//               against its own rate alone: how much they disturb each other is what a schedule
//               can change.
//
// What "the most" is, is the caller's: of the hardware, or of kernels as measured (Ceilings).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/model_shape.h"

namespace spillway {

// What one sweep had to do, what it moved and what it waited for.
struct SweepWork {
  int64_t tokens = 0;        // Rows of the linear layers
  int64_t logit_rows = 0;    // Rows of the head
  int64_t prompt_pairs = 0;  // Sum over prompts of s (s + 1) / 2: query-key pairs of a head
  int64_t cached_rows = 0;   // Sum over decoding sequences of the rows they attend to
  int64_t prompts = 0;       // Sequences prefilled
  double seconds = 0;        // What it took

  // Between the sweep's first and last op; a neighbour's prefetch counts where it was transferred.
  uint64_t disk_read_bytes = 0, disk_write_bytes = 0;
  uint64_t to_device_bytes = 0, to_host_bytes = 0;
  uint64_t host_attended_bytes = 0;  // Cached rows that the CPU read in a device's place

  // The part of `seconds` in which the engine stood still until something was there.
  double weights_wait_seconds = 0, kv_wait_seconds = 0, activations_wait_seconds = 0;
  double staging_wait_seconds = 0;  // A free staging buffer
};

// A matrix product's measured speed: `rows` activations times [outputs, inputs].
struct MatrixRate {
  int64_t rows = 0, outputs = 0, inputs = 0;
  double flops_per_second = 0;
};

// Operations and bytes per second.
struct Ceilings {
  // Of all products, whatever their height: a peak of the hardware. 0: by shape and height, as
  // kernels were measured, every shape at one height at least.
  double products = 0;
  std::vector<MatrixRate> matrix;
  double attention_flops_per_second = 0;  // Of prompt attention's two products
  double memory_bytes_per_second = 0;     // Reading
  double cache_bytes_per_second = 0;      // The same of cached rows in decode; 0: as memory
  // 0: not measured, since the run was to move nothing; what it moved all the same takes no time.
  double disk_read_bytes_per_second = 0;
  double disk_write_bytes_per_second = 0;
  double to_device_bytes_per_second = 0;
  double to_host_bytes_per_second = 0;
};

struct Bound {
  std::string resource;  // That was slowest longest: "compute", "memory", "disk read", "disk
                         // write", "host to device", "device to host"
  double seconds = 0;    // Sweep by sweep
  double seconds_any_schedule = 0;
  // Of the whole run
  double compute_seconds = 0, memory_seconds = 0, disk_read_seconds = 0, disk_write_seconds = 0;
  double to_device_seconds = 0, to_host_seconds = 0;
};

struct BoundModel {
  ModelShape shape;
  // Of one matrix of each of linear_shapes(shape), as the kernels read it: 4-bit weights have the
  // bytes of their own format.
  std::vector<uint64_t> matrix_bytes;
  uint64_t kv_row_bytes = 0;    // Of one position, all layers
  bool keeps_by_score = false;  // The KV rule reads the attention of every row of a prompt.
};

// REQUIRES: matrix_bytes goes with the shape; ceilings has positive rates of compute and memory.
Bound bound_of(const BoundModel& model, const Ceilings& ceilings, std::span<const SweepWork> run);

}  // namespace spillway
