// CpuContext: state that the CPU bodies of the ops share: the worker threads, scratch memory and
// the choice of matmul backend. Owned by the CPU device; used by one op at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/format.h"
#include "kernels/device.h"

namespace spillway::cpu {

class CpuContext {
 public:
  CpuContext(int threads, CpuMatmul products);
  ~CpuContext();
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

  int threads() const { return threads_; }
  bool bf16_dot() const { return bf16_dot_; }  // Our kernels use bf16 (cpu/gemm_bf16.h).
  bool tiles() const { return tiles_; }        // bf16 weights: cpu/gemm_tiles.h.
  // Whether such weights are multiplied by inputs in 8 bits (cpu/gemm_int8.h).
  bool int8(Format weights, bool hadamard) const {
    return takes_int8(weights) && (int8_ == Int8::kAll || (int8_ == Int8::kHadamard && hadamard));
  }

  // Calls body(i) for i in [0, count) on the worker threads and waits. Small counts stay cheap:
  // about 2 microseconds on two idle cores.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) {
    run(
        count, [](const void* state, int64_t i) { (*static_cast<const Body*>(state))(i); }, &body);
  }

  // How many of `rows` rows one task takes: `most`, or fewer where that would leave threads idle.
  int64_t task_rows(int64_t rows, int64_t most) const {
    return std::clamp<int64_t>(rows / (2 * threads_), 1, most);
  }

  // Told how long each task of a parallel_for() took, in the order of their numbers.
  class TaskObserver {
   public:
    virtual ~TaskObserver() = default;
    virtual void observe(std::span<const float> seconds) = 0;
  };
  // From now on the calling thread runs all tasks, one after the other, for measurements of how
  // well work divides among more threads than there are cores (tests/bench/thread_share_bench.cc).
  // It must live until it is taken away by null. Not while an op runs.
  void observe(TaskObserver* observer) { observer_ = observer; }

  // Scratch of the whole context, or of the calling worker inside parallel_for: grows to the
  // largest request ever made and stays. Contents do not survive the op. 64-byte aligned.
  std::byte* shared_scratch(size_t bytes);
  std::byte* thread_scratch(size_t bytes);

 private:
  struct Workers;
  void run(int64_t count, void (*call)(const void*, int64_t), const void* state);
  void run_observed(int64_t count, void (*call)(const void*, int64_t), const void* state);

  int threads_;
  bool bf16_dot_ = false;
  bool tiles_ = false;
  // Weights that are multiplied in 8 bits.
  enum class Int8 : uint8_t { kNone, kHadamard, kAll };
  Int8 int8_ = Int8::kNone;
  std::unique_ptr<Workers> workers_;
  TaskObserver* observer_ = nullptr;
};

}  // namespace spillway::cpu
