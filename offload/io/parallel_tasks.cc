#include "offload/io/parallel_tasks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/processors.h"

namespace spillway {

namespace {

class Tasks {
 public:
  Tasks(size_t count, const std::function<Status(size_t, unsigned)>& task)
      : count_(count), task_(task) {}

  void work(unsigned thread) {
    while (!stopped_) {
      const size_t index = next_++;
      if (index >= count_) break;
      Status status = task_(index, thread);
      if (!status.ok()) stop(std::move(status));
    }
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_one();
  }

  // Returns when every thread has left work(), ticking meanwhile.
  Status wait(unsigned threads, const std::function<bool()>& tick) {
    constexpr auto kTick = std::chrono::milliseconds(100);
    std::unique_lock lock(mutex_);
    running_ += static_cast<int>(threads);
    while (!ended_.wait_for(lock, kTick, [&] { return running_ == 0; })) {
      lock.unlock();
      if (!tick()) stop({Code::kCancelled, "interrupted"});
      lock.lock();
    }
    return first_error_;
  }

 private:
  void stop(Status status) {
    const std::lock_guard lock(mutex_);
    if (first_error_.ok()) first_error_ = std::move(status);
    stopped_ = true;
  }

  const size_t count_;
  const std::function<Status(size_t, unsigned)>& task_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;  // Threads known to wait() minus ended ones; negative before wait()
  Status first_error_;
};

}  // namespace

Status run_tasks(size_t count, unsigned threads,
                 const std::function<Status(size_t, unsigned)>& task,
                 const std::function<bool()>& tick) {
  SPILLWAY_CHECK(threads > 0);
  Tasks tasks(count, task);
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) workers.emplace_back([&tasks, i] { tasks.work(i); });
  return tasks.wait(threads, tick);
}

unsigned reading_threads(unsigned wanted) {
  return wanted != 0 ? wanted : static_cast<unsigned>(usable_processors()) + 2;
}

}  // namespace spillway
