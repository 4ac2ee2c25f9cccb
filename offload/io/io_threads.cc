// Reads and writes with pread and pwrite on a few threads, for systems that forbid io_uring.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "offload/io/file.h"
#include "offload/io/io.h"
#include "offload/io/io_queue.h"

namespace spillway {

namespace {

class ThreadsIo final : public Io {
 public:
  explicit ThreadsIo(const IoOptions& options) : queue_(options.part_bytes_max) {
    const int threads = std::min(options.threads, options.depth);
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { work(); });
      pthread_setname_np(threads_.back().native_handle(), ("io " + std::to_string(i)).c_str());
    }
  }

  ~ThreadsIo() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void use_memory(std::span<std::byte>) override {}
  void use_file(const File&) override {}

  void submit(IoRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push(request);
    }
    // A request of many parts wakes many threads.
    changed_.notify_all();
  }

 private:
  // Ends when the queue is empty after the destructor has begun; parts on other threads end with
  // those threads' loops.
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      std::optional<IoPart> part = queue_.take();
      if (!part) return;
      lock.unlock();
      move(*part);
      lock.lock();
      if (!queue_.finish(*part)) continue;
      lock.unlock();
      deliver(*part->request);
      lock.lock();
    }
  }

  static void move(IoPart& part) {
    const int fd = part.file->fd();
    IoPart::Next next;
    do {
      std::byte* memory = part.memory + part.moved_bytes;
      const size_t bytes = part.bytes - part.moved_bytes;
      const auto offset = static_cast<off_t>(part.offset + part.moved_bytes);
      const ssize_t moved = part.request->kind == IoRequest::Kind::kRead
                                ? ::pread(fd, memory, bytes, offset)
                                : ::pwrite(fd, memory, bytes, offset);
      next = part.advance(moved < 0 ? -int64_t{errno} : moved);
    } while (next == IoPart::Next::kContinue);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  IoQueue queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<Io>> open_threads_io(const IoOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(check_io_options(options));
  return std::unique_ptr<Io>(std::make_unique<ThreadsIo>(options));
}

}  // namespace spillway
