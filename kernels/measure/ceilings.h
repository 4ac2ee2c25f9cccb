// Ceilings of this machine: the rates that `bench` compares a run with, beside the peaks of its
// instructions (kernels/measure/peaks.h). Each is the best of several short runs, since these
// machines are shared and a ceiling is what is possible. Each call blocks, and holds memory
// meanwhile; kCapacity, with the bytes it needs, when that much is not free. `host_bytes`: memory
// that a CPU's weights and caches take while they are measured, or a little more; of a discrete
// device these take what is needed and free. By bytes_past_caches() (rates.h) hardly anything is
// read from a cache that a model would read from memory, unless memory is short.
#pragma once

#include <cstddef>
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

// Bytes per second that the device reads from its memory; on CUDA, bytes read plus bytes written in
// a copy. REQUIRES: host_bytes are whole MiB.
Result<double> measure_memory_read(Device& device, size_t host_bytes);

// Equal parts of a buffer, one after the other and again: up to 128 MiB each, whole MiB. What is
// less than a MiB a part is left over.
class PartsInTurn {
 public:
  explicit PartsInTurn(size_t bytes);  // REQUIRES: at least a MiB.
  size_t bytes() const { return part_; }
  size_t next() { return turn_++ % count_ * part_; }  // Where the next one begins

 private:
  size_t part_ = 0, count_ = 0, turn_ = 0;
};

// Measures a CPU's memory bandwidth repeatedly between other work, since it changes within minutes
// on a shared machine (seen: 77 GB/s just before a run, 43 GB/s just after). Holds its buffer for
// its lifetime. One thread, not inside an op.
class MemoryMeter {
 public:
  // REQUIRES: the device shares host memory, and lives longer; `bytes` are whole MiB.
  static Result<MemoryMeter> open(Device& device, size_t bytes);

  size_t bytes() const { return pool_.memory().bytes(); }
  // Bytes per second, the best of three reads of a part, in the order that was fastest when it was
  // opened: about 10 ms. Each read is of the next part, since caches may still hold the last one.
  double measure();

 private:
  MemoryMeter(WeightPool pool, std::unique_ptr<Stream> stream, const cpu::ReadPattern& pattern)
      : pool_(std::move(pool)),
        stream_(std::move(stream)),
        pattern_(pattern),
        parts_(pool_.memory().bytes()) {}

  WeightPool pool_;
  std::unique_ptr<Stream> stream_;
  cpu::ReadPattern pattern_;
  PartsInTurn parts_;
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
// outputs, of 128 MiB at most in f32 whatever `host_bytes` are; a discrete device, which is fast
// only when all of it has work, multiplies whole matrices, from a pool in its free memory.
Result<std::vector<MatrixCeiling>> measure_matrices(Device& device,
                                                    std::span<const LinearProbe> probes,
                                                    size_t host_bytes);

// FLOP/s of prompt attention, as rates.h counts them, and bytes per second of cached rows that
// decode steps attend to, both by our own ops.
Result<double> measure_prompt_attention(Device& device, const AttentionProbe& probe);
// Takes as many sequences as `host_bytes` hold, or a discrete device needs, up to 16,384, whatever
// probe.sequences says.
Result<double> measure_decode_attention(Device& device, AttentionProbe probe, size_t host_bytes);

}  // namespace spillway
