#include "tests/support/cuda_emulation.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

// The section of static shared memory, from the linker.
extern "C" {
extern std::byte __start_spillway_shared[] __attribute__((weak));
extern std::byte __stop_spillway_shared[] __attribute__((weak));
}

namespace spillway::emulation {

namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kScheduler = SIZE_MAX;  // In place of a thread's number

// A core foretells where functions return to, wrongly once a fiber goes on: so there are as few to
// return from as possible.
#define SPILLWAY_INLINE inline __attribute__((always_inline))

// The stack is the thread's; nothing to give back.
struct KeepStack {
  context::stack_context allocate() { return {}; }
  void deallocate(context::stack_context&) {}
};

enum class Waits : uint8_t { kNot, kBlock, kWarp, kEnded };

struct Thread {
  dim3 index;
  unsigned warp = 0, lane = 0;
  Waits waits = Waits::kNot;
  uint64_t generation = 0;  // Of what it waits for
  context::fiber fiber;
  std::byte* stack = nullptr;
};

// What the lanes of a warp give each other. Two generations: a lane may write the next before all
// have read the last.
struct Warp {
  unsigned arrived = 0;
  uint64_t generation = 0;
  unsigned votes[2] = {0, 0};
  std::byte values[2][32][kExchangeBytes] = {};
};

// Most of what lanes give each other is a number of four bytes.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes == sizeof(uint32_t)) {
    std::memcpy(to, from, sizeof(uint32_t));
  } else {
    std::memcpy(to, from, bytes);
  }
}

[[noreturn]] void fail(const char* what, const dim3& block) {
  std::fprintf(stderr, "CUDA emulation: %s in block (%u, %u, %u); SPILLWAY_EMULATION_SEED=%llu\n",
               what, block.x, block.y, block.z, static_cast<unsigned long long>(run_seed()));
  std::abort();
}

class Block {
 public:
  // `stacks`: one a thread, kept for the next block.
  Block(dim3 threads, size_t shared_bytes, std::vector<std::unique_ptr<std::byte[]>>* stacks)
      : size_(threads), shared_(shared_bytes) {
    for (unsigned z = 0; z < threads.z; ++z) {
      for (unsigned y = 0; y < threads.y; ++y) {
        for (unsigned x = 0; x < threads.x; ++x) {
          Thread& thread = threads_.emplace_back();
          thread.index = dim3(x, y, z);
          const auto number = static_cast<unsigned>(threads_.size() - 1);
          thread.warp = number / 32;
          thread.lane = number % 32;
          if (stacks->size() <= number) {
            stacks->push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
          }
          thread.stack = (*stacks)[number].get();
        }
      }
    }
    order_.resize(threads_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    lanes_ = order_;
    warp_order_.resize((threads_.size() + 31) / 32);
    std::iota(warp_order_.begin(), warp_order_.end(), size_t{0});
  }

  void run(dim3 index, dim3 grid, const std::function<void()>& kernel, std::mt19937_64& random);

  // Called on a thread's fiber.
  SPILLWAY_INLINE void wait(Waits what, uint64_t generation);
  void sync_threads();
  SPILLWAY_INLINE void arrive(unsigned mask, const void* mine, size_t bytes, bool vote);

  Thread& current() { return threads_[current_]; }
  Warp& warp() { return warps_[current().warp]; }
  void* shared() { return shared_.data(); }

  dim3 index_, grid_, size_;

 private:
  bool ready(const Thread& thread) const {
    if (thread.waits == Waits::kBlock) return generation_ != thread.generation;
    if (thread.waits == Waits::kWarp) {
      return warps_[thread.warp].generation != thread.generation;
    }
    return thread.waits == Waits::kNot;
  }
  context::fiber& fiber_of(size_t number) {
    return number == kScheduler ? scheduler_ : threads_[number].fiber;
  }
  void start(size_t number, const std::function<void()>& kernel);
  SPILLWAY_INLINE void leave_for(size_t number);
  SPILLWAY_INLINE void keep_fiber(context::fiber&& from);
  SPILLWAY_INLINE void switch_to(size_t number);
  SPILLWAY_INLINE size_t next();
  bool step(std::span<const size_t> numbers);
  bool run_warps(std::mt19937_64& random);

  std::vector<std::byte> shared_;
  std::vector<Thread> threads_;
  std::vector<size_t> order_;       // Of all threads
  std::vector<size_t> lanes_;       // The same, warp by warp
  std::vector<size_t> warp_order_;  // Of the warps
  std::vector<Warp> warps_;
  std::span<const size_t> turn_;  // Threads that run one after another, each switching to the next
  size_t turn_at_ = 0;
  size_t current_ = kScheduler, before_ = kScheduler;  // Who runs, and who switched to it
  size_t alive_ = 0, arrived_ = 0;
  uint64_t generation_ = 0;
  context::fiber scheduler_;
#ifdef __SANITIZE_ADDRESS__
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
#endif
};

// One per process: kernels run one after another on the thread that drives the fake runtime.
struct Emulator {
  std::mt19937_64 random{seed_of_run(0)};
  Block* block = nullptr;
  std::set<Barrier>* seen = nullptr;  // Barriers, by who looks for them
  std::optional<Barrier> dropped;
  std::vector<std::unique_ptr<std::byte[]>> stacks;
};
Emulator& emulator() {
  static Emulator one;
  return one;
}

void Block::leave_for(size_t number) {
  before_ = current_;
  current_ = number;
  if (number != kScheduler) here.thread = &threads_[number].index;
}

// Keeps the fiber that switched to this one.
void Block::keep_fiber(context::fiber&& from) {
  fiber_of(before_) = std::move(from);
}

// Returns when somebody switches back. (Threads switch to each other: by way of the scheduler it
// would take twice as many switches, which are what emulation mostly does.)
void Block::switch_to(size_t number) {
  leave_for(number);
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack,
                                 number == kScheduler ? scheduler_stack_ : threads_[number].stack,
                                 number == kScheduler ? scheduler_stack_bytes_ : kStackBytes);
#endif
  context::fiber from = std::move(fiber_of(number)).resume();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  keep_fiber(std::move(from));
}

// The next thread of this turn that waits for nothing; behind the last the scheduler.
size_t Block::next() {
  while (turn_at_ < turn_.size()) {
    const size_t number = turn_[turn_at_++];
    if (ready(threads_[number])) return number;
  }
  return kScheduler;
}

void Block::wait(Waits what, uint64_t generation) {
  Thread& thread = current();
  thread.waits = what;
  thread.generation = generation;
  switch_to(next());
  thread.waits = Waits::kNot;
}

void Block::start(size_t number, const std::function<void()>& kernel) {
  Thread& thread = threads_[number];
  thread.waits = Waits::kNot;
  std::byte* top = thread.stack + kStackBytes;
  context::stack_context stack;
  stack.sp = top;
  stack.size = kStackBytes;
  thread.fiber =
      context::fiber(std::allocator_arg, context::preallocated(top, kStackBytes, stack),
                     KeepStack(), [this, number, &kernel](context::fiber&& from) {
#ifdef __SANITIZE_ADDRESS__
                       const void* stack_before = nullptr;
                       size_t bytes_before = 0;
                       __sanitizer_finish_switch_fiber(nullptr, &stack_before, &bytes_before);
                       if (before_ == kScheduler) {
                         scheduler_stack_ = stack_before;
                         scheduler_stack_bytes_ = bytes_before;
                       }
#endif
                       keep_fiber(std::move(from));
                       kernel();
                       threads_[number].waits = Waits::kEnded;
                       --alive_;
                       leave_for(next());
#ifdef __SANITIZE_ADDRESS__
                       const bool to_scheduler = current_ == kScheduler;
                       __sanitizer_start_switch_fiber(
                           nullptr, to_scheduler ? scheduler_stack_ : threads_[current_].stack,
                           to_scheduler ? scheduler_stack_bytes_ : kStackBytes);
#endif
                       return std::move(fiber_of(current_));
                     });
}

void Block::sync_threads() {
  if (++arrived_ == threads_.size()) {
    arrived_ = 0;
    ++generation_;
    return;
  }
  wait(Waits::kBlock, generation_);
}

void Block::arrive(unsigned mask, const void* mine, size_t bytes, bool vote) {
  const unsigned lane = current().lane;
  if ((mask >> lane & 1) == 0) fail("a lane takes part that is not in the mask", index_);
  Warp& of = warp();
  const uint64_t generation = of.generation;
  const size_t slot = generation % 2;
  if (of.arrived == 0) of.votes[slot] = 0;
  copy(of.values[slot][lane], mine, bytes);
  of.votes[slot] |= (vote ? 1u : 0u) << lane;
  of.arrived |= 1u << lane;
  if (of.arrived == mask) {
    of.arrived = 0;
    ++of.generation;
  } else {
    wait(Waits::kWarp, generation);
  }
}

// Runs each of the threads that waits for nothing up to its next switch; whether there was one.
bool Block::step(std::span<const size_t> numbers) {
  turn_ = numbers;
  turn_at_ = 0;
  const size_t first = next();
  if (first == kScheduler) return false;
  switch_to(first);
  return true;
}

// Runs each warp in turn as far as it gets.
bool Block::run_warps(std::mt19937_64& random) {
  std::shuffle(warp_order_.begin(), warp_order_.end(), random);
  bool progress = false;
  for (const size_t warp : warp_order_) {
    const size_t first = warp * 32, count = std::min<size_t>(32, lanes_.size() - first);
    const std::span<size_t> lanes(lanes_.data() + first, count);
    for (bool more = true; more; progress = progress || more) {
      std::shuffle(lanes.begin(), lanes.end(), random);
      more = step(lanes);
    }
  }
  return progress;
}

void Block::run(dim3 index, dim3 grid, const std::function<void()>& kernel,
                std::mt19937_64& random) {
  index_ = index;
  grid_ = grid;
  here = {nullptr, &index_, &size_, &grid_};
  arrived_ = 0;
  std::fill(shared_.begin(), shared_.end(), std::byte{0xff});
  std::fill(__start_spillway_shared, __stop_spillway_shared, std::byte{0xff});
  warps_.assign((threads_.size() + 31) / 32, Warp());
  for (size_t i = 0; i < threads_.size(); ++i) start(i, kernel);
  // Keeping step alone would hide what goes wrong when a warp is far behind.
  const bool in_step = random() % 2 == 0;
  for (alive_ = threads_.size(); alive_ > 0;) {
    if (in_step) std::shuffle(order_.begin(), order_.end(), random);
    const bool progress = in_step ? step(order_) : run_warps(random);
    if (!progress) fail("threads wait at a barrier that others never reach", index_);
  }
  if (arrived_ != 0) fail("threads ended while others waited at __syncthreads()", index_);
}

}  // namespace

uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("SPILLWAY_EMULATION_SEED");
    return given == nullptr ? uint64_t{0} : std::strtoull(given, nullptr, 10);
  }();
  return seed;
}

void set_seed(uint64_t seed) {
  emulator().random.seed(seed_of_run(seed));
}

std::set<Barrier> barriers_of(const std::function<void()>& run) {
  std::set<Barrier> seen;
  emulator().seen = &seen;
  run();
  emulator().seen = nullptr;
  return seen;
}

void drop_barrier(const Barrier& barrier) {
  emulator().dropped = barrier;
}

void run_grid(dim3 blocks, dim3 threads, size_t shared_bytes, const std::function<void()>& kernel) {
  Emulator& one = emulator();
  Block block(threads, shared_bytes, &one.stacks);
  std::vector<dim3> order;
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) order.emplace_back(x, y, z);
    }
  }
  std::shuffle(order.begin(), order.end(), one.random);
  one.block = &block;
  for (const dim3& index : order) block.run(index, blocks, kernel, one.random);
  one.block = nullptr;
}

void* shared_memory() {
  return emulator().block->shared();
}

bool reaches_barrier(const std::source_location& call) {
  Emulator& one = emulator();
  if (one.seen == nullptr && !one.dropped) return true;
  const std::string_view path = call.file_name();
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (one.seen != nullptr) one.seen->insert({std::string(file), call.line()});
  return !one.dropped || one.dropped->line != call.line() || one.dropped->file != file;
}
void sync_threads() {
  emulator().block->sync_threads();
}

void exchange(unsigned mask, const void* mine, void* theirs, size_t bytes, unsigned from) {
  Block& block = *emulator().block;
  if ((mask >> from & 1) == 0) fail("a lane is asked that is not in the mask", block.index_);
  const size_t slot = block.warp().generation % 2;
  block.arrive(mask, mine, bytes, true);
  copy(theirs, block.warp().values[slot][from], bytes);
}

void gather(unsigned mask, const void* mine, void* theirs, size_t bytes) {
  Block& block = *emulator().block;
  const size_t slot = block.warp().generation % 2;
  block.arrive(mask, mine, bytes, true);
  for (size_t lane = 0; lane < 32; ++lane) {
    std::memcpy(static_cast<std::byte*>(theirs) + lane * bytes, block.warp().values[slot][lane],
                bytes);
  }
}

unsigned ballot(unsigned mask, bool predicate) {
  Block& block = *emulator().block;
  const size_t slot = block.warp().generation % 2;
  const char nothing = 0;
  block.arrive(mask, &nothing, 1, predicate);
  return block.warp().votes[slot];
}

}  // namespace spillway::emulation
