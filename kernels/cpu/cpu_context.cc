#include "kernels/cpu/cpu_context.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/clock.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_int8.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace spillway::cpu {

namespace {

// oneTBB hands work to its threads and waits for it with atomics that ThreadSanitizer does not see:
// it is told here, and so knows what the threads wrote as long ago as they did.
class HandOver {
 public:
#ifdef __SANITIZE_THREAD__
  void give() {
    __tsan_release(this);
  }
  void take() {
    __tsan_acquire(this);
  }
#else
  void give() {}
  void take() {}
#endif
};

// Memory that grows and never shrinks.
class Scratch {
 public:
  std::byte* reserve(size_t bytes) {
    if (bytes > bytes_) {
      bytes_ = round_up(bytes, 4096);
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_)));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace

struct CpuContext::Workers {
  explicit Workers(int threads)
      : limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads)),
        arena(threads),
        of_thread(static_cast<size_t>(threads)) {}
  tbb::global_control limit;  // More threads than cores are the user's choice.
  tbb::task_arena arena;
  Scratch shared;
  std::vector<Scratch> of_thread;  // By slot in the arena.
};

CpuContext::CpuContext(int threads, CpuMatmul products)
    : threads_(threads), workers_(std::make_unique<Workers>(threads)) {
  if (products == CpuMatmul::kInt8) int8_ = Int8::kAll;
  if (products == CpuMatmul::kFastest && has_int8()) int8_ = Int8::kHadamard;
  const bool fastest = products == CpuMatmul::kFastest || products == CpuMatmul::kFloat ||
                       products == CpuMatmul::kInt8;
  bf16_dot_ = fastest ? bf16_dot_is_fastest() : products != CpuMatmul::kPanels && has_bf16_dot();
  tiles_ = (fastest || products == CpuMatmul::kTiles) && has_amx_bf16();
}

CpuContext::~CpuContext() = default;

void CpuContext::run(int64_t count, void (*call)(const void*, int64_t), const void* state) {
  if (observer_ != nullptr) return run_observed(count, call, state);
  [[maybe_unused]] HandOver work, results;
  work.give();
  workers_->arena.execute([&] {
    tbb::parallel_for(
        int64_t{0}, count,
        [&](int64_t i) {
          work.take();
          call(state, i);
          results.give();
        },
        tbb::simple_partitioner());
  });
  results.take();
}

void CpuContext::run_observed(int64_t count, void (*call)(const void*, int64_t),
                              const void* state) {
  std::vector<float> seconds(static_cast<size_t>(count));
  workers_->arena.execute([&] {  // Scratch is by place in it.
    double start = steady_seconds();
    for (int64_t i = 0; i < count; ++i) {
      call(state, i);
      const double end = steady_seconds();
      seconds[static_cast<size_t>(i)] = static_cast<float>(end - start);
      start = end;
    }
  });
  observer_->observe(seconds);
}

std::byte* CpuContext::shared_scratch(size_t bytes) {
  return workers_->shared.reserve(bytes);
}

std::byte* CpuContext::thread_scratch(size_t bytes) {
  const int slot = tbb::this_task_arena::current_thread_index();
  SPILLWAY_CHECK(slot >= 0 && slot < threads_);
  return workers_->of_thread[static_cast<size_t>(slot)].reserve(bytes);
}

}  // namespace spillway::cpu
