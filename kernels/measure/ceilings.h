// What this machine reaches alone: the rates that `bench` holds a run against, beside the peaks of
// its instructions (kernels/measure/peaks.h). Each is the best of several short runs just now,
// since these machines are shared and a ceiling is what is possible. Each call blocks, and takes
// memory for as long; kCapacity, which says how much, when that is not there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/memory_probe.h"
#include "kernels/device.h"
#include "kernels/measure/rates.h"
#include "kernels/tensor.h"

namespace spillway {

// Bytes per second that the device reads from its memory, from a buffer that no cache holds; on
// CUDA, that it reads and writes together in a copy.
Result<double> measure_memory_read(Device& device);

// The same for a CPU, again and again between other work, since what memory gives on a shared
// machine changes within minutes (seen: 77 GB/s just before a run, 43 GB/s just after). Holds its
// buffer as long as it lives. One thread, not inside an op.
class MemoryMeter {
 public:
  // REQUIRES: the device shares host memory, and lives longer.
  static Result<MemoryMeter> open(Device& device);

  size_t bytes() const { return pool_.memory().bytes(); }
  // Bytes per second, the best of three reads, in the order that was fastest when it was opened:
  // about 10 ms
  double measure();

 private:
  MemoryMeter(WeightPool pool, std::unique_ptr<Stream> stream, const cpu::ReadPattern& pattern)
      : pool_(std::move(pool)), stream_(std::move(stream)), pattern_(pattern) {}

  WeightPool pool_;
  std::unique_ptr<Stream> stream_;
  cpu::ReadPattern pattern_;
};

// Bytes per second of copies between pinned host memory and a device's own: each direction alone,
// and the sum of both at once.
struct CopyCeiling {
  double to_device = 0, to_host = 0, both = 0;
};
Result<CopyCeiling> measure_copies(Device& device);

// Floating-point operations per second of `rows` x [outputs, inputs] in `weights` format: the
// better of our linear op and of the vendor library's product (oneDNN, in its own layout and the
// format of the activations: it has no 4-bit weights, so theirs is the f32 or bf16 product; on CUDA
// cuBLAS, through our op).
struct MatrixCeiling {
  double ours = 0;
  double library = 0;
  double best() const { return ours > library ? ours : library; }
};

// Of each probe, all in one format. On the CPU large matrices are measured on a part of their
// outputs; a device with memory of its own, which is fast only when all of it has work, is given
// whole ones, out of as much memory as is left beside what it holds.
Result<std::vector<MatrixCeiling>> measure_matrices(Device& device,
                                                    std::span<const LinearProbe> probes);

// FLOP/s of prompt attention, as rates.h counts them, and bytes per second of cached rows that
// decode steps attend to: of our own ops.
Result<double> measure_prompt_attention(Device& device, const AttentionProbe& probe);
// As many of the probe's sequences as no cache holds, whatever it says.
Result<double> measure_decode_attention(Device& device, AttentionProbe probe);

}  // namespace spillway
