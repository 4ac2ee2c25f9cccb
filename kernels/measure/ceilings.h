// Ceilings of this machine: the rates that `bench` compares a run with, beside the peaks of its
// instructions (kernels/measure/peaks.h). Each is the best of several short runs, since these
// machines are shared and a ceiling is what is possible. Each call blocks, and holds memory
// meanwhile; kCapacity, with the bytes it needs, when that much is not free.
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

// Bytes per second that the device reads from its memory, from a buffer larger than any cache; on
// CUDA, bytes read plus bytes written in a copy.
Result<double> measure_memory_read(Device& device);

// Measures a CPU's memory bandwidth repeatedly between other work, since it changes within minutes
// on a shared machine (seen: 77 GB/s just before a run, 43 GB/s just after). Holds its buffer for
// its lifetime. One thread, not inside an op.
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

// Bytes per second of copies between pinned host memory and a discrete device's memory: each
// direction alone, and the sum of both at once.
struct CopyCeiling {
  double to_device = 0, to_host = 0, both = 0;
};
Result<CopyCeiling> measure_copies(Device& device);

// Floating-point operations per second of `rows` x [outputs, inputs] in `weights` format: our
// linear op, and on CUDA cuBLAS, through our op, with weights in the format of the activations.
struct MatrixCeiling {
  double ours = 0;
  double library = 0;  // On a CPU 0: there is none.
  double best() const { return ours > library ? ours : library; }
};

// Measures each probe, all in one format. On the CPU large matrices are measured on a part of their
// outputs; a discrete device, which is fast only when all of it has work, multiplies whole
// matrices, from a pool in its free memory.
Result<std::vector<MatrixCeiling>> measure_matrices(Device& device,
                                                    std::span<const LinearProbe> probes);

// FLOP/s of prompt attention, as rates.h counts them, and bytes per second of cached rows that
// decode steps attend to, both by our own ops.
Result<double> measure_prompt_attention(Device& device, const AttentionProbe& probe);
// Takes enough sequences to exceed every cache, whatever probe.sequences says.
Result<double> measure_decode_attention(Device& device, AttentionProbe probe);

}  // namespace spillway
