// Reads and writes through io_uring. One thread, "io", submits, waits, reaps and runs the
// callbacks; submit() passes it requests under a mutex and wakes it through an eventfd when it
// sleeps.
//
// One thread owns the ring because the kernel finishes a transfer on the thread that submitted it:
// a computing thread would be interrupted for every part. The ring therefore needs no lock, may use
// the cheap modes (SINGLE_ISSUER, DEFER_TASKRUN), and ThreadSanitizer, which sees no order through
// the kernel's rings, sees all of it: caller -> mutex -> io thread -> callback.
//
// AddressSanitizer does not see the kernel's writes either. The target of a read is poisoned until
// its callback runs, so that earlier accesses are reported.
#include <liburing.h>
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "offload/io/file.h"
#include "offload/io/io.h"
#include "offload/io/io_queue.h"

namespace spillway {

namespace {

constexpr uint64_t kWakeTag = uint64_t{1} << 32;       // user_data of the wake-up; parts have less
constexpr size_t kPieceBytes = size_t{1} << 30;        // The kernel's limit for one buffer
constexpr unsigned kPiecesMax = 1024, kFilesMax = 64;  // Sizes of the sparse tables
constexpr auto kRetryPause = std::chrono::milliseconds(1);

Status no_uring(const std::string& what, int error) {
  return not_found("no io_uring here: " + what + ": " + std::generic_category().message(error));
}

// The ring with its registered memory and files.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) io_uring_queue_exit(&ring_);
  }

  // Sets up a ring for `entries` submissions. Only the thread that calls open() may call the other
  // functions.
  Status open(unsigned entries);

  io_uring* get() { return &ring_; }

  // use_memory() and use_file() do nothing if the kernel refuses (RLIMIT_MEMLOCK, old kernels).
  void use_memory(std::span<std::byte> memory);
  void use_file(int fd);

  // Fills a free submission entry, with registered memory and file where available.
  void prepare(const IoPart& part, uint64_t tag);
  void prepare_read(int fd, void* memory, unsigned bytes, uint64_t tag);

 private:
  // Registered memory from `data` on, in pieces of kPieceBytes, adjacent in the table.
  struct Region {
    std::byte* data;
    size_t bytes;
    unsigned first_piece;
  };

  io_uring_sqe* entry();
  int piece_of(const std::byte* data, size_t bytes) const;  // -1: no piece holds all of it

  io_uring ring_{};
  bool open_ = false;
  bool has_memory_table_ = false, has_file_table_ = false;
  std::vector<Region> regions_;
  unsigned pieces_ = 0;
  std::vector<int> fds_;  // By index in the table
};

Status Ring::open(unsigned entries) {
  // SINGLE_ISSUER needs Linux 6.0, DEFER_TASKRUN 6.1; the ring works without them at a little more
  // cost.
  int error = -EINVAL;
  for (const unsigned flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0u}) {
    if (error == -EINVAL) {
      error = io_uring_queue_init(entries, &ring_, flags);
    }
  }
  if (error != 0) return no_uring("io_uring_setup", -error);
  open_ = true;
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return no_uring("asking for its operations", ENOSYS);
  bool complete = true;
  for (const int operation :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED}) {
    complete &= io_uring_opcode_supported(probe, operation) != 0;
  }
  io_uring_free_probe(probe);
  if (!complete) return no_uring("an operation is missing", EOPNOTSUPP);
  has_memory_table_ = io_uring_register_buffers_sparse(&ring_, kPiecesMax) == 0;
  has_file_table_ = io_uring_register_files_sparse(&ring_, kFilesMax) == 0;
  return {};
}

void Ring::use_memory(std::span<std::byte> memory) {
  Region region{memory.data(), 0, pieces_};
  while (has_memory_table_ && region.bytes < memory.size() && pieces_ < kPiecesMax) {
    const iovec piece{region.data + region.bytes,
                      std::min(memory.size() - region.bytes, kPieceBytes)};
    if (io_uring_register_buffers_update_tag(&ring_, pieces_, &piece, nullptr, 1) != 1) break;
    region.bytes += piece.iov_len;
    ++pieces_;
  }
  if (region.bytes > 0) regions_.push_back(region);
}

void Ring::use_file(int fd) {
  if (!has_file_table_ || fds_.size() == kFilesMax || fd < 0) return;
  const auto place = static_cast<unsigned>(fds_.size());
  if (io_uring_register_files_update(&ring_, place, &fd, 1) == 1) fds_.push_back(fd);
}

io_uring_sqe* Ring::entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  SPILLWAY_CHECK(entry != nullptr);  // One for every part in flight and one for the wake-up
  return entry;
}

int Ring::piece_of(const std::byte* data, size_t bytes) const {
  for (const Region& region : regions_) {
    if (data < region.data || data + bytes > region.data + region.bytes) continue;
    const auto begin = static_cast<size_t>(data - region.data);
    if (begin / kPieceBytes != (begin + bytes - 1) / kPieceBytes) return -1;
    return static_cast<int>(region.first_piece + begin / kPieceBytes);
  }
  return -1;
}

void Ring::prepare(const IoPart& part, uint64_t tag) {
  io_uring_sqe* sqe = entry();
  std::byte* memory = part.memory + part.moved_bytes;
  const auto bytes = static_cast<unsigned>(part.bytes - part.moved_bytes);
  const uint64_t offset = part.offset + part.moved_bytes;
  const bool read = part.request->kind == IoRequest::Kind::kRead;
  int fd = part.file->fd();
  const auto place = std::find(fds_.begin(), fds_.end(), fd);
  const bool fixed = place != fds_.end();
  if (fixed) fd = static_cast<int>(place - fds_.begin());
  const int piece = piece_of(memory, bytes);
  if (piece >= 0) {
    (read ? io_uring_prep_read_fixed(sqe, fd, memory, bytes, offset, piece)
          : io_uring_prep_write_fixed(sqe, fd, memory, bytes, offset, piece));
  } else {
    (read ? io_uring_prep_read(sqe, fd, memory, bytes, offset)
          : io_uring_prep_write(sqe, fd, memory, bytes, offset));
  }
  if (fixed) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, tag);
}

void Ring::prepare_read(int fd, void* memory, unsigned bytes, uint64_t tag) {
  io_uring_sqe* sqe = entry();
  io_uring_prep_read(sqe, fd, memory, bytes, 0);
  io_uring_sqe_set_data64(sqe, tag);
}

class UringIo final : public Io {
 public:
  explicit UringIo(const IoOptions& options)
      : queue_(options.part_bytes_max), parts_(static_cast<size_t>(options.depth)) {
    for (uint32_t i = 0; i < parts_.size(); ++i) free_.push_back(i);
    finished_.reserve(parts_.size());
  }
  ~UringIo() override;

  // Starts the thread. Called once, before any other function.
  Status open();

  std::string_view name() const override { return "io_uring"; }

  // Only the io thread may register memory; it does so before it starts later requests.
  void use_memory(std::span<std::byte> memory) override;
  void use_file(const File& file) override;

  void submit(IoRequest& request) override;

 private:
  void wake(std::unique_lock<std::mutex> lock);

  // Io thread only, from here on.
  void run();
  void take_hints();
  bool start_parts();
  void submit_parts(bool wait);
  void reap();
  void complete(uint32_t slot, int result);

  Ring ring_;
  int wake_fd_ = -1;
  uint64_t wake_count_ = 0;  // The kernel's target for the eventfd's value

  std::mutex mutex_;
  IoQueue queue_;
  std::vector<std::span<std::byte>> memory_;  // Hints not yet handled
  std::vector<int> fds_;                      // Likewise
  bool asleep_ = false;                       // Needs a wake-up for new requests
  bool stopping_ = false;

  std::vector<IoPart> parts_;   // By tag
  std::vector<uint32_t> free_;  // Tags
  // Requests whose callbacks are due, after new requests have been started: a callback may take as
  // long as a checksum.
  std::vector<IoRequest*> finished_;
  std::thread thread_;
};

Status UringIo::open() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC);
  if (wake_fd_ < 0) return io_error("eventfd", errno);
  std::promise<Status> opened;
  thread_ = std::thread([this, &opened] {
    const Status status = ring_.open(static_cast<unsigned>(parts_.size()) + 1);
    opened.set_value(status);
    if (status.ok()) run();
  });
  pthread_setname_np(thread_.native_handle(), "io");
  return opened.get_future().get();
}

UringIo::~UringIo() {
  if (thread_.joinable()) {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake(std::move(lock));
    thread_.join();
  }
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void UringIo::use_memory(std::span<std::byte> memory) {
  if (memory.empty()) return;
  std::unique_lock lock(mutex_);
  memory_.push_back(memory);
  wake(std::move(lock));
}

void UringIo::use_file(const File& file) {
  std::unique_lock lock(mutex_);
  if (!file.striped()) fds_.push_back(file.fd());
  for (const File& part : file.parts()) fds_.push_back(part.fd());
  wake(std::move(lock));
}

void UringIo::submit(IoRequest& request) {
  std::unique_lock lock(mutex_);
  queue_.push(request);
  wake(std::move(lock));
}

void UringIo::wake(std::unique_lock<std::mutex> lock) {
  if (!asleep_) return;
  asleep_ = false;
  lock.unlock();
  const uint64_t one = 1;
  SPILLWAY_CHECK(::write(wake_fd_, &one, sizeof one) == sizeof one);
}

void UringIo::run() {
  ring_.prepare_read(wake_fd_, &wake_count_, sizeof wake_count_, kWakeTag);
  for (;;) {
    take_hints();
    if (!start_parts()) return;
    submit_parts(/*wait=*/finished_.empty());
    for (IoRequest* request : finished_) deliver(*request);
    finished_.clear();
    reap();
  }
}

// Registers hinted memory and files outside the lock: pinning takes long, and submit() must not
// wait for it.
void UringIo::take_hints() {
  std::vector<std::span<std::byte>> memory;
  std::vector<int> fds;
  {
    const std::lock_guard lock(mutex_);
    memory.swap(memory_);
    fds.swap(fds_);
  }
  for (const std::span<std::byte> piece : memory) ring_.use_memory(piece);
  for (const int fd : fds) ring_.use_file(fd);
}

// Turns waiting requests into submissions, up to the depth. False at the end, when all requests are
// done.
bool UringIo::start_parts() {
  const std::lock_guard lock(mutex_);
  while (!free_.empty()) {
    const std::optional<IoPart> part = queue_.take();
    if (!part) break;
    const uint32_t slot = free_.back();
    free_.pop_back();
    parts_[slot] = *part;
    if (part->request->kind == IoRequest::Kind::kRead) {
      ASAN_POISON_MEMORY_REGION(part->memory, part->bytes);
    }
    ring_.prepare(*part, slot);
  }
  // Without a free slot the next completion comes before any new request could start; with
  // callbacks to run, this thread comes here again before it sleeps.
  asleep_ = !free_.empty() && finished_.empty();
  return !stopping_ || free_.size() < parts_.size() || !finished_.empty();
}

void UringIo::submit_parts(bool wait) {
  const int result = io_uring_submit_and_wait(ring_.get(), wait ? 1 : 0);
  if (result >= 0 || result == -EINTR) return;
  // The kernel is short of memory; entries that it did not take stay in the ring for the next
  // submission.
  SPILLWAY_CHECK(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
  std::this_thread::sleep_for(kRetryPause);
}

void UringIo::reap() {
  for (unsigned ready = io_uring_cq_ready(ring_.get()); ready > 0; --ready) {
    io_uring_cqe* cqe = nullptr;
    SPILLWAY_CHECK(io_uring_peek_cqe(ring_.get(), &cqe) == 0);
    const uint64_t tag = io_uring_cqe_get_data64(cqe);
    const int result = cqe->res;
    io_uring_cqe_seen(ring_.get(), cqe);
    if (tag == kWakeTag) {
      ring_.prepare_read(wake_fd_, &wake_count_, sizeof wake_count_, kWakeTag);
    } else {
      complete(static_cast<uint32_t>(tag), result);
    }
  }
}

void UringIo::complete(uint32_t slot, int result) {
  IoPart& part = parts_[slot];
  const IoPart::Next next = part.advance(result);
  if (next == IoPart::Next::kContinue) {
    if (result == -EAGAIN) std::this_thread::sleep_for(kRetryPause);
    ring_.prepare(part, slot);
    return;
  }
  IoRequest& request = *part.request;
  bool finished = false;
  {
    const std::lock_guard lock(mutex_);
    finished = queue_.finish(part);
  }
  free_.push_back(slot);
  if (!finished) return;
  ASAN_UNPOISON_MEMORY_REGION(request.memory, request.bytes);
  finished_.push_back(&request);
}

}  // namespace

Result<std::unique_ptr<Io>> open_uring_io(const IoOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(check_io_options(options));
  auto io = std::make_unique<UringIo>(options);
  SPILLWAY_RETURN_IF_ERROR(io->open());
  return std::unique_ptr<Io>(std::move(io));
}

}  // namespace spillway
