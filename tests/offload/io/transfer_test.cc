// Transfers: verified, tried again once, never lost.
#include "offload/io/transfer.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>

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
