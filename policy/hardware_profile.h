// A machine's capacities and rates, as measured (`spillway profile`) or as written by hand from
// published figures (configs/hardware/): all that the cost model knows of hardware. Plain data, any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/format.h"

namespace spillway {

// A figure: the median of `samples` measurements between `low` and `high`, or one with a source.
struct Figure {
  double value = 0;
  double low = 0, high = 0;
  int samples = 0;
  std::string source;  // Source of a hand-written figure
};

// The median of the samples, or the mean of the two in the middle. REQUIRES: there is one.
Figure figure_of(std::vector<double> samples);

// FLOP/s of `rows` activations times [outputs, inputs] in `format`, the weights read from memory.
struct MatrixFigure {
  Format format = Format::kF32;
  int64_t rows = 0, outputs = 0, inputs = 0;
  Figure rate;
};

// Operations/s of a CPU's fastest instruction for this arithmetic, a multiply-add being two.
struct PeakFigure {
  std::string arithmetic;   // "f32", "bf16", "int8"
  std::string instruction;  // For people
  Figure rate;
};

// Bytes/s of direct I/O in requests of `block_bytes`, `depth` at a time.
struct DiskFigure {
  uint64_t block_bytes = 0;
  int depth = 0;
  Figure rate;
};

// Bytes/s of copies over the link to a device, each of `bytes` bytes.
struct CopyFigure {
  uint64_t bytes = 0;
  Figure to_device, to_host;
};

struct HardwareProfile {
  std::string name;         // "2 x Intel(R) Xeon(R) Processor", "T4 16 GB, ..."
  std::string measured_at;  // ISO 8601; empty for a hand-written profile

  // Of the figures of shared KV heads (grouped-query attention)
  static constexpr int64_t kQueryHeadsPerKvHead = 4;

  // The compute device: the CPU itself, or a discrete device.
  struct Compute {
    std::string kind;  // "cpu", "cuda"
    Figure memory_bytes, memory_free_bytes;
    Figure memory_read;                // Bytes/s
    std::vector<MatrixFigure> matrix;  // Batch sizes of each format ascending
    Figure prompt_attention;           // FLOP/s of prompt attention's two matrix products
    Figure decode_attention;           // Bytes/s of cached rows attended to, in 16 bits
    Figure decode_attention_q4;  // Like decode_attention, for a 4-bit cache; value 0: not measured
    Figure decode_attention_q8;  // For an 8-bit one
    // Like those three, of kQueryHeadsPerKvHead query heads for each KV head; value 0: not measured
    Figure decode_attention_shared = {}, decode_attention_q4_shared = {},
           decode_attention_q8_shared = {};
    // Ops/s of one that has next to nothing to do, on a discrete device; value 0: not measured
    Figure small_ops = {};
    bool in_int8 = false;  // Figures of quantised weights in `matrix` are of 8-bit products
    std::vector<PeakFigure> peaks = {};  // CPU only; none: not measured
  } compute;

  struct Host {
    Figure memory_bytes, memory_free_bytes;
    Figure memory_read;  // Bytes/s
    // Bytes/s of cached rows attended to by the CPU, heads having keys and values of their own: a
    // plan in which it attends for a discrete device knows no other
    Figure decode_attention;
  } host;  // On the CPU the same figures as `compute`

  struct Link {
    Figure to_device, to_host, both;     // Bytes/s; `both`: both directions at once, summed
    std::vector<CopyFigure> small = {};  // Copies smaller than those above; none: not measured
    // Times per second that a few rows get home, are waited for and return, one after another;
    // value 0: not measured
    Figure round_trips = {};
  };
  std::optional<Link> link;  // Only with a discrete device

  struct Disk {
    Figure free_bytes;
    std::vector<DiskFigure> read, write;
    // Bytes/s of reads, checksums included, that would take all of the CPU: how much they slow down
    // matrix products beside them. Value 0: not measured.
    Figure processor;
  } disk;
};

}  // namespace spillway
