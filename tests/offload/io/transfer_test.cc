// Transfers: verified, tried again once, never lost.
#include "offload/io/transfer.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "kernels/base/clock.h"
#include "offload/io/aligned_bytes.h"
#include "tests/support/fake_io.h"

namespace spillway::transfer_test {
namespace {

using test::FakeIo;
using test::IoFault;

struct Fixture {
  Fixture() {
    std::memset(memory.reserve(kBytes).data(), 0x5a, kBytes);
    REQUIRE(file.write(0, memory.reserve(kBytes).first(kBytes)).ok());
    transfer.kind = IoRequest::Kind::kRead;
    transfer.file = &file;
    transfer.memory = memory.reserve(kBytes).data();
    transfer.bytes = kBytes;
    transfer.verify = [](const Transfer& t) -> Status {
      for (size_t i = 0; i < t.bytes; ++i) {
        if (t.memory[i] != std::byte{0x5a}) return corruption("wrong bytes");
      }
      return {};
    };
  }
  static constexpr size_t kBytes = 8192;
  FakeIo io{test::FakeIoOptions{.seed = 4}};
  const File file = test::memory_file(kBytes);
  AlignedBytes memory;
  Transfer transfer;
};

TEST_CASE("a transfer that goes wrong once is tried again, one that goes wrong twice is an error") {
  for (const auto effect : {IoFault::Effect::kError, IoFault::Effect::kFlipBit}) {
    for (const uint64_t times : {1u, 2u}) {
      Fixture f;
      f.io.add_fault({.effect = effect, .count = times});
      TransferQueue queue(f.io, nullptr);
      queue.start(f.transfer);
      const Status status = queue.wait(f.transfer);
      CHECK(queue.done(f.transfer));
      CHECK(f.io.reads() == 2);
      CHECK(status.ok() == (times == 1));
      if (times == 1) continue;
      CHECK(status.code() ==
            (effect == IoFault::Effect::kError ? Code::kIoError : Code::kCorruption));
      // The error is that of this time; the next one starts afresh.
      queue.start(f.transfer);
      CHECK(queue.wait(f.transfer).ok());
    }
  }
}

TEST_CASE("the queue knows what went over the link in each direction, and for how long") {
  Fixture f;
  TransferQueue queue(f.io, nullptr);
  CHECK(queue.use(IoRequest::Kind::kRead).bytes == 0);
  CHECK(queue.use(IoRequest::Kind::kRead).busy_seconds == 0);
  double busy = 0;
  for (uint64_t i = 1; i <= 3; ++i) {
    queue.start(f.transfer);
    REQUIRE(queue.wait(f.transfer).ok());
    const LinkUse use = queue.use(IoRequest::Kind::kRead);
    CHECK(use.bytes == i * Fixture::kBytes);
    CHECK(use.busy_seconds > busy);
    busy = use.busy_seconds;
    CHECK(queue.use(IoRequest::Kind::kRead).busy_seconds == busy);  // Nothing is under way.
  }
  CHECK(queue.use(IoRequest::Kind::kWrite).bytes == 0);
  f.transfer.kind = IoRequest::Kind::kWrite;
  queue.start(f.transfer);
  REQUIRE(queue.wait(f.transfer).ok());
  CHECK(queue.use(IoRequest::Kind::kWrite).bytes == Fixture::kBytes);
  CHECK(queue.use(IoRequest::Kind::kRead).busy_seconds == busy);
  // One that fails has moved nothing that anybody can use.
  f.transfer.kind = IoRequest::Kind::kRead;
  f.io.add_fault({.effect = IoFault::Effect::kError, .count = 2});
  queue.start(f.transfer);
  CHECK_FALSE(queue.wait(f.transfer).ok());
  CHECK(queue.use(IoRequest::Kind::kRead).bytes == 3 * Fixture::kBytes);
  CHECK(queue.use(IoRequest::Kind::kRead).busy_seconds > busy);
}

// Ends when it is told to.
struct HeldTransfer {
  std::atomic<bool> there{false}, go_on{false};
};

TEST_CASE("time on the link counts while a transfer is under way, and once for several") {
  Fixture f;
  HeldTransfer held;
  TransferQueue queue(f.io, nullptr);
  f.transfer.user = &held;
  f.transfer.verify = [](const Transfer& t) -> Status {
    auto& state = *static_cast<HeldTransfer*>(t.user);
    state.there = true;
    while (!state.go_on) std::this_thread::yield();
    return {};
  };
  queue.start(f.transfer);
  while (!held.there) std::this_thread::yield();
  const double first = queue.use(IoRequest::Kind::kRead).busy_seconds;
  const double start = steady_seconds();
  while (steady_seconds() == start) std::this_thread::yield();
  CHECK(queue.use(IoRequest::Kind::kRead).busy_seconds > first);
  CHECK(queue.use(IoRequest::Kind::kRead).bytes == 0);
  held.go_on = true;
  REQUIRE(queue.wait(f.transfer).ok());
}

TEST_CASE("a transfer never started is well") {
  Fixture f;
  TransferQueue queue(f.io, nullptr);
  CHECK(queue.done(f.transfer));
  CHECK(queue.wait(f.transfer).ok());
}

// Starts itself again from its own callback, many times.
struct Chain {
  TransferQueue* queue;
  std::atomic<int> left;
};

TEST_CASE("the queue waits for what callbacks start, too") {
  Fixture f;
  Chain chain{nullptr, 50};
  {
    TransferQueue queue(f.io, nullptr);
    chain.queue = &queue;
    f.transfer.user = &chain;
    f.transfer.arrived = [](Transfer& t) {
      auto& c = *static_cast<Chain*>(t.user);
      if (--c.left > 0) c.queue->start(t);
    };
    queue.start(f.transfer);
  }
  CHECK(chain.left == 0);
  CHECK(f.io.in_flight() == 0);
  CHECK(f.io.reads() == 50);
}

}  // namespace
}  // namespace spillway::transfer_test
