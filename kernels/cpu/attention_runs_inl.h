// The order in which a decode step reads the cache, and its prefetches (attention_decode.cc);
// included once per instruction set.
#if defined(SPILLWAY_CPU_ATTENTION_RUNS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_RUNS_INL_H
#undef SPILLWAY_CPU_ATTENTION_RUNS_INL_H
#else
#define SPILLWAY_CPU_ATTENTION_RUNS_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "kernels/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {

// Prefetches a run of 16 rows ahead of its use, since the hardware's prefetcher does not know where
// the next run lies. Into the second level: all its lines at once would fill the first one's miss
// buffers, two dozen or so, and every load would wait behind them.
HWY_INLINE void prefetch_run(const std::byte* run, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(run + i, 0, 2);
}

// Bytes between the prefetch and the use: a core reads 15 to 30 GB/s from memory that answers after
// 0.1 microseconds only if some KB are under way all the time. Among 4 to 64 KiB this is the best
// or next to it (two Zen 5 cores, heads of 64 and 128).
constexpr size_t kAheadBytes = 8192;
// Of heads that share rows, whose arithmetic takes as long as memory does: what AVX2 asks for early
// pushes their queries and sums out of the first-level cache (two Zen 3 cores: 1 to 3 % slower with
// twice as many). With AVX-512 twice as many are as fast, half as many 9 % slower.
constexpr size_t kAheadBytesShared = 4096;

// The runs of neighbouring KV heads, keys or values, in the order in which they are read: block by
// block, in a block from `offset` on head by head, where they are contiguous.
struct Runs {
  KvBlocks kv;
  size_t block_bytes = 0, offset = 0, run_bytes = 0, heads = 0, count = 0;

  HWY_INLINE const std::byte* of_block(size_t block) const {
    return kv.block(static_cast<int64_t>(block), block_bytes) + offset;
  }
};

// A position in Runs, and in the runs that are read after the last of them.
class RunCursor {
 public:
  RunCursor(const Runs& runs, const Runs& then) : runs_(runs), then_(then), at_(runs.of_block(0)) {}

  const std::byte* at() const { return at_; }

  // The runs from here on that lie one behind another: one at the very last.
  size_t contiguous() const { return runs_.heads - head_; }

  // Moves on by so many of them; at the very last it stays. REQUIRES: runs <= contiguous().
  HWY_INLINE void advance(size_t runs = 1) {
    if (done_ + runs == runs_.count) return behind_last(runs);
    done_ += runs;
    head_ += runs;
    at_ += runs * runs_.run_bytes;
    if (head_ < runs_.heads) return;
    head_ = 0;
    at_ = runs_.of_block(++block_);
  }

 private:
  void behind_last(size_t runs) {
    if (then_.count == 0) {
      done_ += runs - 1;
      head_ += runs - 1;
      at_ += (runs - 1) * runs_.run_bytes;
      return;
    }
    runs_ = then_;
    then_.count = 0;
    at_ = runs_.of_block(0);
    done_ = head_ = block_ = 0;
  }

  Runs runs_, then_;
  const std::byte* at_;
  size_t done_ = 0, head_ = 0, block_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
