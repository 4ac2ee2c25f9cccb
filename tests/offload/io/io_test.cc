// One contract, three backends: every case here runs on io_uring, on threads and on the fake.
#include "offload/io/io.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "offload/io/aligned_bytes.h"
#include "offload/io/file.h"
#include "tests/support/fake_io.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"

namespace spillway::io_test {
namespace {

using test::FakeIo;
using test::memory_file;
using Kind = IoRequest::Kind;

// Null where this machine has no such backend.
std::unique_ptr<Io> open_backend(const std::string& name, const IoOptions& options, uint64_t seed) {
  if (name == "fake") {
    return std::make_unique<FakeIo>(test::FakeIoOptions{
        .seed = seed, .depth = options.depth, .threads = 1 + static_cast<int>(seed % 3)});
  }
  Result<std::unique_ptr<Io>> io =
      name == "io_uring" ? open_uring_io(options) : open_threads_io(options);
  if (!io.ok()) {
    test::skip(std::string(io.status().message()));
    return nullptr;
  }
  CHECK(io.value()->name() == name);
  return std::move(io).value();
}

// Requests on their way, and how they ended.
class Requests {
 public:
  explicit Requests(Io& io) : io_(io) {}

  void submit(Kind kind, const File& file, uint64_t offset, std::span<std::byte> memory) {
    Entry* entry = nullptr;
    {
      const std::lock_guard lock(mutex_);
      entry = &entries_.emplace_back();
      ++under_way_;
    }
    entry->requests = this;
    entry->request = {.kind = kind,
                      .file = &file,
                      .offset = offset,
                      .memory = memory.data(),
                      .bytes = memory.size(),
                      .done = done,
                      .owner = entry};
    io_.submit(entry->request);
  }

  // Blocks until all have ended.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ == 0; });
  }

  // Blocks; the outcome of the only or, if any failed, of the first failed request.
  Status status() {
    wait();
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      REQUIRE(entry.calls == 1);
      if (!entry.status.ok()) return entry.status;
    }
    return {};
  }

 private:
  struct Entry {
    IoRequest request;
    Requests* requests = nullptr;
    Status status;
    int calls = 0;
  };

  static void done(IoRequest& request, Status status) {
    auto* entry = static_cast<Entry*>(request.owner);
    Requests& requests = *entry->requests;
    const std::lock_guard lock(requests.mutex_);
    entry->status = std::move(status);
    ++entry->calls;
    --requests.under_way_;
    requests.changed_.notify_all();
  }

  Io& io_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  int under_way_ = 0;
};

Status transfer(Io& io, Kind kind, const File& file, uint64_t offset, std::span<std::byte> memory) {
  Requests requests(io);
  requests.submit(kind, file, offset, memory);
  return requests.status();
}

void fill(std::span<std::byte> memory, std::mt19937_64& random) {
  for (size_t i = 0; i < memory.size(); i += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(&memory[i], &value, std::min(sizeof value, memory.size() - i));
  }
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

File open_new(const std::string& path, int flags = 0) {
  return File::open(path, O_RDWR | O_CREAT | O_TRUNC | flags).value();
}

// Rounds of reads and writes of disjoint ranges, all at once, from several threads, checked against
// a copy in memory.
struct Traffic {
  size_t file_bytes = 0, range_bytes_max = 0;
  size_t granule = 1;  // Offsets and sizes are its multiples.
  int rounds = 1, threads = 1;
};

void run_traffic(Io& io, const File& file, const Traffic& traffic, std::mt19937_64& random) {
  AlignedBytes file_copy, work;
  const std::span<std::byte> copy = file_copy.reserve(traffic.file_bytes);
  const std::span<std::byte> memory = work.reserve(traffic.file_bytes);
  fill(copy, random);
  std::memcpy(memory.data(), copy.data(), copy.size());
  REQUIRE(transfer(io, Kind::kWrite, file, 0, memory).ok());

  struct Range {
    Kind kind;
    size_t begin, bytes;
  };
  for (int round = 0; round < traffic.rounds; ++round) {
    std::vector<Range> ranges;
    for (size_t begin = 0; begin < traffic.file_bytes;) {
      const size_t units = 1 + random() % (traffic.range_bytes_max / traffic.granule);
      const size_t bytes = std::min(units * traffic.granule, traffic.file_bytes - begin);
      ranges.push_back({random() % 2 == 0 ? Kind::kRead : Kind::kWrite, begin, bytes});
      begin += bytes;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    for (const Range& range : ranges) {
      const auto part = memory.subspan(range.begin, range.bytes);
      fill(part, random);
      if (range.kind == Kind::kWrite) std::memcpy(&copy[range.begin], part.data(), part.size());
    }
    Requests requests(io);
    std::vector<std::thread> threads;
    for (int t = 0; t < traffic.threads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = static_cast<size_t>(t); i < ranges.size();
             i += static_cast<size_t>(traffic.threads)) {
          requests.submit(ranges[i].kind, file, ranges[i].begin,
                          memory.subspan(ranges[i].begin, ranges[i].bytes));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Status status = requests.status();
    INFO(status.message());
    REQUIRE(status.ok());
    REQUIRE(same(memory, copy));
  }
  REQUIRE(transfer(io, Kind::kRead, file, 0, memory).ok());
  REQUIRE(same(memory, copy));
}

std::string any_backend() {
  return GENERATE(as<std::string>{}, "io_uring", "threads", "fake");
}

}  // namespace

TEST_CASE("io: random traffic arrives where it belongs, buffered, of any size") {
  const std::string backend = any_backend();
  const uint64_t seed = GENERATE(range(uint64_t{1}, uint64_t{9}));
  CAPTURE(backend, seed);
  std::mt19937_64 random(seed);
  const size_t part_bytes = kIoAlignment << random() % 9;
  auto io = open_backend(
      backend, {.depth = 1 + static_cast<int>(random() % 40), .part_bytes_max = part_bytes}, seed);
  if (io == nullptr) return;
  const File file = memory_file(0);
  if (seed % 2 == 0) io->use_file(file);
  run_traffic(*io, file,
              {.file_bytes = 3'000'001,
               .range_bytes_max = 1 + random() % 100'000,
               .rounds = 4,
               .threads = 3},
              random);
}

TEST_CASE("io: random traffic arrives where it belongs, direct, by pages") {
  const std::string backend = any_backend();
  const uint64_t seed = GENERATE(range(uint64_t{1}, uint64_t{5}));
  CAPTURE(backend, seed);
  std::mt19937_64 random(seed);
  auto io = open_backend(
      backend, {.depth = 1 + static_cast<int>(random() % 40), .part_bytes_max = size_t{1} << 18},
      seed);
  if (io == nullptr) return;
  const TempDirectory directory;
  const File file = open_new(directory / "data", O_DIRECT);
  if (seed % 2 == 0) io->use_file(file);
  run_traffic(*io, file,
              {.file_bytes = size_t{8} << 20,
               .range_bytes_max = size_t{1} << 20,
               .granule = kIoAlignment,
               .rounds = 3,
               .threads = 2},
              random);
}

TEST_CASE("io: 40 MB in one request") {
  const std::string backend = any_backend();
  CAPTURE(backend);
  auto io = open_backend(backend, {}, 1);
  if (io == nullptr) return;
  const TempDirectory directory;
  const File file = open_new(directory / "data", O_DIRECT);
  constexpr size_t kBytes = 40'000'000 / kIoAlignment * kIoAlignment;
  AlignedBytes written, read;
  std::mt19937_64 random(5);
  fill(written.reserve(kBytes), random);
  REQUIRE(transfer(*io, Kind::kWrite, file, kIoAlignment, written.reserve(kBytes)).ok());
  io->use_memory(read.reserve(kBytes));
  REQUIRE(transfer(*io, Kind::kRead, file, kIoAlignment, read.reserve(kBytes)).ok());
  CHECK(same(read.reserve(kBytes), written.reserve(kBytes)));
}

TEST_CASE("io: a file that ends early is corruption and says where, once") {
  const std::string backend = any_backend();
  const int flags = GENERATE(0, O_DIRECT);
  const size_t file_bytes = GENERATE(5000, 8192, 1 << 20);
  CAPTURE(backend, flags, file_bytes);
  auto io = open_backend(backend, {.depth = 4, .part_bytes_max = 8192}, 1);
  if (io == nullptr) return;
  const TempDirectory directory;
  { REQUIRE(open_new(directory / "short").write(0, std::vector<std::byte>(file_bytes)).ok()); }
  const File file = File::open(directory / "short", O_RDONLY | flags).value();
  AlignedBytes memory;
  for (const size_t offset : {size_t{0}, size_t{4096}, size_t{4} << 20}) {
    const Status status = transfer(*io, Kind::kRead, file, offset, memory.reserve(size_t{2} << 20));
    INFO(status.message());
    CHECK(status.code() == Code::kCorruption);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains(directory / "short") &&
                   Catch::Contains("2097152 bytes at " + std::to_string(offset)));
  }
  CHECK(transfer(*io, Kind::kRead, file, 0, memory.reserve(4096)).ok());
}

TEST_CASE("io: a full disk, a file-size limit and bad descriptors are errors of their request") {
  const std::string backend = any_backend();
  CAPTURE(backend);
  auto io = open_backend(backend, {.depth = 2, .part_bytes_max = 65536}, 1);
  if (io == nullptr) return;
  AlignedBytes owner;
  const std::span<std::byte> memory = owner.reserve(size_t{1} << 20);
  std::memset(memory.data(), 1, memory.size());

  const File full = File::open("/dev/full", O_WRONLY).value();
  Status status = transfer(*io, Kind::kWrite, full, 8192, memory);
  CHECK(status.code() == Code::kIoError);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("write /dev/full, 1048576 bytes at 8192: No space left on device"));

  const TempDirectory directory;
  const File read_only = File::open(directory.path(), O_RDONLY).value();
  CHECK_THAT(std::string(transfer(*io, Kind::kWrite, read_only, 0, memory).message()),
             Catch::Contains(directory.path()) && Catch::Contains("Bad file descriptor"));
  const File none;
  CHECK_THAT(std::string(transfer(*io, Kind::kRead, none, 0, memory).message()),
             Catch::Contains("Bad file descriptor"));

  struct rlimit before {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 300'000;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const File file = open_new(directory / "limited");
  status = transfer(*io, Kind::kWrite, file, 0, memory);
  const Status within = transfer(*io, Kind::kWrite, file, 0, memory.first(200'000));
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, handler);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("limited, 1048576 bytes at 0: File too large"));
  CHECK(within.ok());
}

TEST_CASE("io: callbacks submit the same request again, and others") {
  const std::string backend = any_backend();
  CAPTURE(backend);
  struct Chain {
    Io* io = nullptr;
    File file = memory_file(1 << 20);
    std::vector<std::byte> memory = std::vector<std::byte>(10'000);
    std::array<IoRequest, 2> requests;  // In turn and twice each; one is under way.
    int left = 1000;
    std::promise<Status> ended;

    static void done(IoRequest& request, Status status) {
      auto& chain = *static_cast<Chain*>(request.owner);
      if (!status.ok() || chain.left == 0) return chain.ended.set_value(status);
      --chain.left;
      IoRequest& next = chain.requests[static_cast<size_t>(chain.left / 2 % 2)];
      next.offset = static_cast<uint64_t>(chain.left) * 1000;
      chain.io->submit(next);
    }
  };
  Chain chain;
  auto io = open_backend(backend, {.depth = 2, .part_bytes_max = 4096}, 3);
  if (io == nullptr) return;
  chain.io = io.get();
  for (IoRequest& request : chain.requests) {
    request = {.file = &chain.file,
               .memory = chain.memory.data(),
               .bytes = chain.memory.size(),
               .done = Chain::done,
               .owner = &chain};
  }
  io->submit(chain.requests[0]);
  CHECK(chain.ended.get_future().get().ok());
  CHECK(chain.left == 0);
}

TEST_CASE("io: more requests than depth, and destruction waits for them") {
  const std::string backend = any_backend();
  const int depth = GENERATE(1, 2, 64);
  CAPTURE(backend, depth);
  const File file = memory_file(size_t{1} << 20);
  std::vector<std::byte> memory(size_t{1} << 20);
  auto io = open_backend(backend, {.depth = depth, .part_bytes_max = 4096}, 7);
  if (io == nullptr) return;
  std::atomic<int> ended = 0;
  std::vector<IoRequest> requests(200);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i] = {.kind = i % 2 == 0 ? Kind::kRead : Kind::kWrite,
                   .file = &file,
                   .offset = i * 5000,
                   .memory = &memory[i * 5000],
                   .bytes = 5000,
                   .done =
                       [](IoRequest& request, Status status) {
                         if (status.ok()) ++*static_cast<std::atomic<int>*>(request.owner);
                       },
                   .owner = &ended};
    io->submit(requests[i]);
  }
  io.reset();
  CHECK(ended == 200);
}

TEST_CASE("io: memory of more than 1 GiB is used across the kernel's limit for one buffer") {
  const std::string backend = any_backend();
  CAPTURE(backend);
  auto io = open_backend(backend, {}, 1);
  if (io == nullptr) return;
  // The same 4 MiB over and over, so that pinning all of it costs 4 MiB.
  constexpr size_t kUnit = size_t{4} << 20, kUnits = 300, kLimit = size_t{1} << 30;
  const int fd = memfd_create("spillway-test", MFD_CLOEXEC);
  REQUIRE(ftruncate(fd, kUnit) == 0);
  void* base = mmap(nullptr, kUnit * kUnits, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(base != MAP_FAILED);
  auto* memory = static_cast<std::byte*>(base);
  for (size_t i = 0; i < kUnits; ++i) {
    REQUIRE(mmap(memory + i * kUnit, kUnit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                 0) != MAP_FAILED);
  }
  ::close(fd);
  io->use_memory({memory, kUnit * kUnits});

  const TempDirectory directory;
  const File file = open_new(directory / "data", O_DIRECT);
  AlignedBytes owner;
  const std::span<std::byte> data = owner.reserve(kUnit);
  std::mt19937_64 random(9);
  fill(data, random);
  REQUIRE(transfer(*io, Kind::kWrite, file, 0, data).ok());
  for (const size_t begin :
       {size_t{0}, kLimit - kUnit / 2, kLimit - 4096, kUnit * kUnits - kUnit}) {
    std::memset(memory, 0, kUnit);
    CAPTURE(begin);
    REQUIRE(transfer(*io, Kind::kRead, file, 0, {memory + begin, kUnit}).ok());
    CHECK(same({memory + begin, kUnit}, data));
  }
  io.reset();
  munmap(base, kUnit * kUnits);
}

TEST_CASE("io: without io_uring it is threads") {
  std::string uring_message;
  std::string name;
  // A filter on this thread only refuses io_uring_setup, as containers do.
  std::thread([&] {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program{.len = std::size(filter), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      return;
    }
    const auto uring = open_uring_io({});
    if (uring.status().code() == Code::kNotFound) uring_message = uring.status().message();
    const auto io = open_io({});
    if (io.ok()) name = io.value()->name();
  }).join();
  if (uring_message.empty() && name.empty()) {
    test::skip("no seccomp here");
    return;
  }
  CHECK_THAT(uring_message, Catch::Contains("io_uring") && Catch::Contains("not permitted"));
  CHECK(name == "threads");
}

TEST_CASE("io: options out of range are refused") {
  for (const IoOptions options :
       {IoOptions{.depth = 0}, IoOptions{.depth = 5000}, IoOptions{.part_bytes_max = 0},
        IoOptions{.part_bytes_max = 5000}, IoOptions{.part_bytes_max = size_t{2} << 30},
        IoOptions{.threads = 0}}) {
    CHECK(open_uring_io(options).status().code() == Code::kInvalidArgument);
    CHECK(open_threads_io(options).status().code() == Code::kInvalidArgument);
    CHECK(open_io(options).status().code() == Code::kInvalidArgument);
  }
}

TEST_CASE("fake io: thousands of seeds of random traffic", "[slow]") {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    FakeIo io({.seed = seed,
               .depth = 1 + static_cast<int>(random() % 8),
               .threads = 1 + static_cast<int>(random() % 3)});
    run_traffic(io, memory_file(0),
                {.file_bytes = 60'000, .range_bytes_max = 1 + random() % 20'000, .rounds = 2},
                random);
  }
}

TEST_CASE("fake io: faults meet the requests they were made for, and no others") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    FakeIo io({.seed = seed});
    const File file = memory_file(100'000);
    std::vector<std::byte> memory(10'000, std::byte{1});

    io.add_fault({.kind = Kind::kWrite, .skip = 1, .count = 1, .error = ENOSPC});
    CHECK(transfer(io, Kind::kWrite, file, 0, memory).ok());
    const Status full = transfer(io, Kind::kWrite, file, 0, memory);
    CHECK_THAT(std::string(full.message()),
               Catch::Contains("10000 bytes at 0: No space left on device"));
    CHECK(transfer(io, Kind::kWrite, file, 0, memory).ok());

    io.add_fault({.path_part = file.path(), .begin = 20'000, .end = 30'000});
    CHECK(transfer(io, Kind::kRead, file, 10'000, memory).ok());
    CHECK_FALSE(transfer(io, Kind::kRead, file, 19'999, memory).ok());
    CHECK(transfer(io, Kind::kRead, file, 30'000, memory).ok());
    io.clear_faults();

    for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
      std::vector<std::byte> ones(10'000, std::byte{1}), back(10'000);
      REQUIRE(transfer(io, Kind::kWrite, file, 0, ones).ok());
      io.add_fault({.effect = test::IoFault::Effect::kFlipBit, .kind = kind, .count = 1});
      REQUIRE(transfer(io, Kind::kWrite, file, 0, ones).ok());
      REQUIRE(transfer(io, Kind::kRead, file, 0, back).ok());
      int wrong_bits = 0;
      for (size_t i = 0; i < ones.size(); ++i) {
        wrong_bits += std::popcount(static_cast<unsigned>(back[i] ^ ones[i]));
      }
      CHECK(wrong_bits == 1);
      CHECK(same(ones, std::vector<std::byte>(10'000, std::byte{1})));
    }
  }
}

TEST_CASE("fake io: held requests wait, slow ones are overtaken, misaligned ones are refused") {
  FakeIo io({.aligned_only = true});
  const File file = memory_file(100'000);
  AlignedBytes owner;
  const std::span<std::byte> memory = owner.reserve(8192);

  io.hold();
  Requests requests(io);
  requests.submit(Kind::kRead, file, 0, memory.first(4096));
  CHECK(io.in_flight() == 1);
  CHECK(memory[0] == std::byte{0xA5});  // Junk until it is there
  io.release();
  CHECK(requests.status().ok());
  CHECK(memory[0] == std::byte{0});
  CHECK(io.in_flight() == 0);

  io.add_fault({.effect = test::IoFault::Effect::kSlow, .count = 1, .seconds = 0.05});
  Requests slow(io);
  slow.submit(Kind::kRead, file, 0, memory.first(4096));
  CHECK(transfer(io, Kind::kRead, file, 4096, memory.last(4096)).ok());
  CHECK(io.in_flight() == 1);
  CHECK(slow.status().ok());

  CHECK_FALSE(transfer(io, Kind::kRead, file, 100, memory).ok());
  CHECK_FALSE(transfer(io, Kind::kRead, file, 0, memory.subspan(1)).ok());
  CHECK(io.reads() == 5);
  CHECK(io.writes() == 0);
}

}  // namespace spillway::io_test
