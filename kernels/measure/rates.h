// Rates of this machine, several samples of each: `profile` reports them with their spread,
// ceilings.h takes the best. They run what the engine runs: our ops on the device's streams. Each
// call blocks about as long as its limits say, and holds its memory meanwhile; kCapacity when that
// much is not free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/device.h"

namespace spillway {

struct RunLimits {
  int runs_min = 2, runs_max = 5;  // Besides a warm-up run
  double seconds_max = 1.5;        // No run starts later than this, after runs_min runs.
  double run_seconds = 0;          // A run repeats its work for about this long.
};

using Rates = std::vector<double>;  // One per run

// Bytes, whole MiB, that measurements on the host go through so that what they read comes from
// memory: twice the last-level caches (some virtual machines have those of a whole socket for two
// cores), at least 256 MiB; 512 MiB where the caches are unknown. No more than `most`, or 128 MiB
// where that is less: then large caches may hold a part.
size_t bytes_past_caches(size_t most);

// Bytes per second that the device reads of `bytes` of its memory (whole MiB), on a CPU in the
// order that is fastest there at the moment (cpu/memory_probe.h); on CUDA, bytes read plus bytes
// written in a copy from one half of them to the other.
Result<Rates> memory_read_rates(Device& device, size_t bytes, const RunLimits& limits);

// Bytes per second of copies of `bytes` between pinned host memory and the device's memory: each
// direction alone, and the sum of both at once. REQUIRES: the device is discrete.
struct CopyRates {
  Rates to_device, to_host, both;
};
Result<CopyRates> copy_rates(Device& device, size_t bytes, const RunLimits& limits);

// Ops per second of one that normalises a single row of 4096 numbers: what any op costs a discrete
// device, to queue and to run. REQUIRES: the device is discrete.
Result<Rates> small_op_rates(Device& device, const RunLimits& limits);

// Round trips per second of one row of 4096 float32 numbers between a stream that computes and the
// host: copied home, waited for and copied back on streams of their own, as for attention by the
// CPU, before the next leaves. REQUIRES: the device is discrete.
Result<Rates> round_trip_rates(Device& device, const RunLimits& limits);

// Device memory filled with random weights, finite in every format. Matrices are taken from it in
// turn, so that a pool several times larger than the last-level cache gives weights from memory.
class WeightPool {
 public:
  static Result<WeightPool> open(Device& device, size_t bytes);
  const Buffer& memory() const { return memory_; }

 private:
  explicit WeightPool(Buffer memory) : memory_(std::move(memory)) {}
  Buffer memory_;
};

// Floating-point operations per second of our linear op: `rows` activations times [outputs, inputs]
// in `weights` format and the device's layout for it. REQUIRES: the pool holds one such matrix.
struct LinearProbe {
  Format weights = Format::kF32;
  int64_t rows = 0, outputs = 0, inputs = 0;
};
size_t weight_bytes(const Device& device, const LinearProbe& probe);
Result<Rates> linear_rates(Device& device, const WeightPool& pool, const LinearProbe& probe,
                           const RunLimits& limits);

// Attention of `sequences` sequences of `tokens` tokens in one layer, the full KV rule. REQUIRES:
// heads is a multiple of kv_heads: as many query heads share the keys and values of each KV head.
struct AttentionProbe {
  Format kv = Format::kF16;
  int64_t sequences = 0, tokens = 0, heads = 0, kv_heads = 0, head_size = 0;
};
// Bytes of the cache that a decode step reads.
double attended_bytes(const AttentionProbe& probe);
// Bytes of memory that measuring a decode step takes for each sequence.
size_t decode_bytes(const AttentionProbe& probe);

// FLOP/s of both matrix products of whole prompts, the causal half counted; bytes per second of
// cached rows that a decode step attends to.
Result<Rates> prompt_attention_rates(Device& device, const AttentionProbe& probe,
                                     const RunLimits& limits);
Result<Rates> decode_attention_rates(Device& device, const AttentionProbe& probe,
                                     const RunLimits& limits);

}  // namespace spillway
