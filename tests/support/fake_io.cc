#include "tests/support/fake_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"

namespace spillway::test {

namespace {

constexpr int kJunk = 0xA5;

bool aligned(const IoRequest& request) {
  return request.offset % kIoAlignment == 0 && request.bytes % kIoAlignment == 0 &&
         reinterpret_cast<uintptr_t>(request.memory) % kIoAlignment == 0;
}

// The first file that the request touches and the fault is of; null: there is none.
const File* concerns(const IoFault& fault, const IoRequest& request) {
  if (fault.kind != request.kind || request.offset >= fault.end ||
      request.offset + request.bytes <= fault.begin) {
    return nullptr;
  }
  for (size_t done = 0; done < request.bytes;) {
    const File::Place place = request.file->place(request.offset + done, request.bytes - done);
    if (place.file->path().find(fault.path_part) != std::string::npos) return place.file;
    done += place.bytes;
  }
  return nullptr;
}

IoPart::Next move(IoPart& part, size_t bytes) {
  const File::Place place = part.request->file->place(part.offset + part.moved_bytes, bytes);
  part.file = place.file;
  std::byte* memory = part.memory + part.moved_bytes;
  const auto offset = static_cast<off_t>(place.offset);
  const ssize_t moved = part.request->kind == IoRequest::Kind::kRead
                            ? ::pread(place.file->fd(), memory, place.bytes, offset)
                            : ::pwrite(place.file->fd(), memory, place.bytes, offset);
  return part.advance(moved < 0 ? -int64_t{errno} : moved);
}

}  // namespace

FakeIo::FakeIo(const FakeIoOptions& options) : options_(options), random_(options.seed) {
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
}

FakeIo::~FakeIo() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    held_ = false;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void FakeIo::submit(IoRequest& request) {
  SPILLWAY_CHECK(request.file != nullptr && request.memory != nullptr);
  SPILLWAY_CHECK(request.done != nullptr && request.bytes > 0);
  request.completed_bytes = 0;
  request.error = 0;
  const bool read = request.kind == IoRequest::Kind::kRead;
  if (read) std::memset(request.memory, kJunk, request.bytes);
  {
    const std::lock_guard lock(mutex_);
    ++(read ? reads_ : writes_);
    ++in_flight_;
    pending_.push_back(judge(request));
  }
  changed_.notify_one();
}

void FakeIo::add_fault(const IoFault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

void FakeIo::clear_faults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

void FakeIo::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeIo::release() {
  {
    const std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

uint64_t FakeIo::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

uint64_t FakeIo::writes() const {
  const std::lock_guard lock(mutex_);
  return writes_;
}

uint64_t FakeIo::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_;
}

// What will become of the request.
FakeIo::Pending FakeIo::judge(IoRequest& request) {
  Pending pending;
  pending.part = {.request = &request,
                  .file = request.file,
                  .offset = request.offset,
                  .memory = request.memory,
                  .bytes = request.bytes};
  if (options_.aligned_only && !aligned(request)) {
    pending.error = EINVAL;
    pending.failed = request.file;
    return pending;
  }
  for (IoFault& fault : faults_) {
    const File* file = fault.count == 0 ? nullptr : concerns(fault, request);
    if (file == nullptr) continue;
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    --fault.count;
    switch (fault.effect) {
      case IoFault::Effect::kError:
        pending.error = fault.error;
        pending.failed = file;
        pending.error_after = random_() % request.bytes / kIoAlignment * kIoAlignment;
        break;
      case IoFault::Effect::kFlipBit:
        pending.flip_bit = true;
        break;
      case IoFault::Effect::kSlow:
        pending.not_before = steady_seconds() + fault.seconds;
        break;
    }
    break;
  }
  return pending;
}

void FakeIo::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || (!held_ && !pending_.empty()); });
    if (pending_.empty()) return;
    const size_t window = std::min(pending_.size(), static_cast<size_t>(options_.depth));
    const auto drawn = pending_.begin() + static_cast<ptrdiff_t>(random_() % window);
    const Pending pending = *drawn;
    if (pending.not_before > steady_seconds()) {
      // Others may go first; when there are none, this gives the core away.
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
      continue;
    }
    pending_.erase(drawn);
    step(lock, pending);
  }
}

// Moves a random share of what is left, in blocks that O_DIRECT accepts, and ends the request when
// nothing is left.
void FakeIo::step(std::unique_lock<std::mutex>& lock, Pending pending) {
  IoRequest& request = *pending.part.request;
  const size_t end = pending.error != 0 ? pending.error_after : request.bytes;
  const size_t left = end - pending.part.moved_bytes;
  const bool all = left <= kIoAlignment || random_() % 2 == 0;
  const size_t bytes = all ? left : (1 + random_() % (left / kIoAlignment)) * kIoAlignment;
  lock.unlock();
  const bool failed = bytes > 0 && move(pending.part, bytes) == IoPart::Next::kError;
  lock.lock();
  if (!failed && pending.part.moved_bytes < end) {
    pending_.push_back(pending);
    return;
  }
  if (!failed && pending.flip_bit) flip_bit(request);
  request.error = failed ? pending.part.error : pending.error;
  request.failed = failed ? pending.part.file : pending.failed;
  request.completed_bytes = pending.part.moved_bytes;
  --in_flight_;
  lock.unlock();
  deliver(request);
  lock.lock();
}

void FakeIo::flip_bit(const IoRequest& request) {
  const size_t place = random_() % request.bytes;
  const auto bit = static_cast<std::byte>(1 << random_() % 8);
  if (request.kind == IoRequest::Kind::kRead) {
    request.memory[place] ^= bit;
    return;
  }
  // Opened anew, since this may be an O_DIRECT file.
  const File::Place there = request.file->place(request.offset + place, 1);
  Result<File> file = File::open("/proc/self/fd/" + std::to_string(there.file->fd()), O_WRONLY);
  const std::byte wrong = request.memory[place] ^ bit;
  SPILLWAY_CHECK(file.ok() && file->write(there.offset, {&wrong, 1}).ok());
}

File memory_file(uint64_t bytes) {
  // The path carries the descriptor's number, and faults go by paths: no two files share one.
  static std::atomic<int> next_number{1};
  const int plain = memfd_create("spillway-test", MFD_CLOEXEC);
  SPILLWAY_CHECK(plain >= 0 && ::ftruncate(plain, static_cast<off_t>(bytes)) == 0);
  const int fd = ::fcntl(plain, F_DUPFD_CLOEXEC, 100 + next_number++ % 800);
  SPILLWAY_CHECK(fd >= 0);
  Result<File> file = File::open("/proc/self/fd/" + std::to_string(fd), O_RDWR);
  ::close(plain);
  ::close(fd);
  SPILLWAY_CHECK(file.ok());
  return std::move(file).value();
}

}  // namespace spillway::test
