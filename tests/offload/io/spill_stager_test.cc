// Objects that come and go through a ring, on a disk that answers out of order: every use sees what
// the last one wrote.
#include "offload/io/spill_stager.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "tests/support/fake_io.h"

namespace spillway::spill_stager_test {
namespace {

using test::FakeIo;
using test::IoFault;

constexpr uint64_t kPiece = 1536;  // No multiple of a sector, as small models have it

// Objects with room for `pieces` each, one behind the other.
struct Objects {
  Objects(size_t count, uint64_t pieces) : stride((pieces * kPiece + 4095) / 4096 * 4096) {
    for (size_t i = 0; i < count; ++i) {
      SpilledObject object;
      object.offset = i * stride;
      object.piece_bytes = kPiece;
      all.push_back(object);
    }
  }
  uint64_t stride;
  std::vector<SpilledObject> all;
};

Buffer ring(Device& device, uint64_t bytes) {
  return device.allocate(Memory::kPinned, bytes).value();
}

void finish(SpillStager& stager, size_t use, uint64_t from, uint64_t to) {
  const ByteRange change{from, to};
  stager.finish(use, std::span(&change, from < to ? 1 : 0));
}

TEST_CASE("each use of an object sees what the last one left") {
  const auto device = open_cpu_device(1).value();
  const auto seed = GENERATE(range(uint64_t{0}, uint64_t{150}));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kPieces = 24;
  Objects objects(5, kPieces);
  // A first piece of its own size, as a cache with scores has.
  const uint64_t head = seed % 2 == 0 ? 0 : kIoAlignment;
  for (SpilledObject& object : objects.all) {
    object.head_bytes = head;
    object.offset *= 2;
  }
  objects.stride *= 2;
  FakeIo io({.seed = seed, .aligned_only = true});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(5 * objects.stride);
  // None, one small change, or some.
  const uint64_t outbox = kIoAlignment * (seed % 5 < 3 ? seed % 5 : 8);
  SpillStager stager(queue, file, ring(*device, objects.stride * (1 + seed % 4) + outbox),
                     seed % 3 != 0, outbox);
  // What each object holds: pieces of one repeated byte.
  std::vector<std::vector<uint8_t>> holds(5);
  std::vector<SpillUse> uses, last_uses;  // Which the stager may look at until the next ones.
  std::vector<size_t> guesses;
  for (int sweep = 0; sweep < 6; ++sweep) {
    std::vector<size_t> order;
    uses.swap(last_uses);
    uses.clear();
    std::vector<uint64_t> lengths;  // In pieces, after the uses planned so far
    for (const auto& held : holds) lengths.push_back(held.size());
    std::vector<uint64_t> reads;
    const auto add = [&](size_t which, uint64_t after) {
      const uint64_t before = std::exchange(lengths[which], after);
      order.push_back(which);
      reads.push_back(before);
      uses.push_back({&objects.all[which], objects.all[which].piece_begin(before),
                      objects.all[which].piece_begin(after)});
    };
    // What was guessed comes true, or only its beginning, or not.
    for (size_t i = 0; i < guesses.size() && random() % 8 != 0; ++i) {
      add(guesses[i], std::min(kPieces, lengths[guesses[i]] + 1));
    }
    for (uint64_t i = 0; i < 3 + random() % 9; ++i) {
      const size_t which = random() % 5;
      const uint64_t after = std::min(kPieces, lengths[which] + random() % 8);
      if (after > 0) add(which, after);
    }
    const size_t sure = uses.size();
    guesses.clear();
    for (size_t which = random() % 3; which < 5; which += 1 + random() % 2) {
      guesses.push_back(which);
      const SpilledObject& object = objects.all[which];
      const uint64_t held = lengths[which];
      uses.push_back({&objects.all[which], object.piece_begin(held),
                      object.piece_begin(std::min(kPieces, held + 1))});
    }
    stager.begin(uses, guesses.size());
    for (size_t use = 0; use < sure; ++use) {
      const Result<std::byte*> memory = stager.wait(use);
      REQUIRE(memory.ok());
      std::vector<uint8_t>& held = holds[order[use]];
      REQUIRE(held.size() == reads[use]);
      const SpilledObject& object = objects.all[order[use]];
      const auto size = [&](uint64_t piece) {
        return object.piece_begin(piece + 1) - object.piece_begin(piece);
      };
      for (size_t piece = 0; piece < held.size(); ++piece) {
        for (const uint64_t at : {uint64_t{0}, size(piece) / 2, size(piece) - 1}) {
          CHECK(memory.value()[object.piece_begin(piece) + at] == std::byte{held[piece]});
        }
      }
      // Change any pieces and append, as a cache with a limited budget does.
      const uint64_t before = held.size();
      held.resize(object.pieces_in(uses[use].bytes));
      std::vector<ByteRange> changes;
      for (uint64_t piece = 0; piece < held.size(); ++piece) {
        if (piece < before && random() % 3 != 0) continue;
        held[piece] = static_cast<uint8_t>(random());
        std::memset(memory.value() + object.piece_begin(piece), held[piece], size(piece));
        if (!changes.empty() && changes.back().to == object.piece_begin(piece)) {
          changes.back().to = object.piece_begin(piece + 1);
        } else {
          changes.push_back({object.piece_begin(piece), object.piece_begin(piece + 1)});
        }
      }
      stager.finish(use, changes);
    }
  }
  stager.abandon();
  CHECK(io.in_flight() == 0);
}

TEST_CASE("a failed write comes to light at the next use, and only there") {
  const auto device = open_cpu_device(1).value();
  Objects objects(2, 4);
  FakeIo io({.seed = 3});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(2 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 4 * objects.stride), true);
  io.add_fault({.effect = IoFault::Effect::kError,
                .kind = IoRequest::Kind::kWrite,
                .begin = objects.stride,
                .error = ENOSPC});
  const std::vector<SpillUse> uses = {{&objects.all[0], 0, kPiece}, {&objects.all[1], 0, kPiece}};
  stager.begin(uses);
  for (size_t use = 0; use < 2; ++use) {
    std::memset(stager.wait(use).value(), 7, kPiece);
    finish(stager, use, 0, kPiece);
  }
  stager.flush();
  const std::vector<SpillUse> again = {{&objects.all[0], kPiece, kPiece},
                                       {&objects.all[1], kPiece, kPiece}};
  stager.begin(again);
  CHECK(stager.wait(0).ok());
  stager.finish(0, {});
  const Status status = stager.wait(1).status();
  CHECK(status.code() == Code::kIoError);
  CHECK(status.message().find(file.path()) != std::string_view::npos);
  stager.finish(1, {});
}

// The caller went on without what could not be read: later it would be a layer with a hole.
TEST_CASE("what could not be read once stays failed") {
  const auto device = open_cpu_device(1).value();
  Objects objects(2, 1);
  FakeIo io({.seed = 9});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(2 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 4 * objects.stride), true);
  std::vector<SpillUse> uses = {{&objects.all[0], 0, kPiece}, {&objects.all[1], 0, kPiece}};
  stager.begin(uses);
  for (size_t use = 0; use < 2; ++use) {
    std::memset(stager.wait(use).value(), 7, kPiece);
    finish(stager, use, 0, kPiece);
  }
  stager.flush();
  // The read and its second try.
  io.add_fault({.effect = IoFault::Effect::kError, .end = objects.stride, .count = 2});
  for (SpillUse& use : uses) use.read_bytes = kPiece;
  for (int sweep = 0; sweep < 2; ++sweep) {
    INFO("sweep " << sweep);
    stager.begin(uses);
    CHECK(stager.wait(0).status().code() == Code::kIoError);
    stager.finish(0, {});
    CHECK(stager.wait(1).ok());
    stager.finish(1, {});
    stager.flush();
  }
}

TEST_CASE("without overlap a use is finished when its bytes are home") {
  const auto device = open_cpu_device(1).value();
  Objects objects(1, 1);
  FakeIo io({.seed = 10});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(objects.stride);
  SpillStager stager(queue, file, ring(*device, 2 * objects.stride), false);
  io.add_fault(
      {.effect = IoFault::Effect::kSlow, .kind = IoRequest::Kind::kWrite, .seconds = 0.05});
  const std::vector<SpillUse> uses = {{&objects.all[0], 0, kPiece}};
  stager.begin(uses);
  std::memset(stager.wait(0).value(), 7, kPiece);
  finish(stager, 0, 0, kPiece);
  CHECK(io.in_flight() == 0);
}

TEST_CASE("a guess about what could not be written, or never was, reads nothing") {
  const auto device = open_cpu_device(1).value();
  Objects objects(3, 1);
  FakeIo io({.seed = 4});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(3 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 8 * objects.stride), true);
  const uint64_t lost = GENERATE(0, 1);
  io.add_fault({.effect = IoFault::Effect::kError,
                .kind = IoRequest::Kind::kWrite,
                .begin = lost * objects.stride,
                .end = (lost + 1) * objects.stride,
                .error = ENOSPC});
  std::vector<SpillUse> uses;
  for (size_t i = 0; i < 2; ++i) uses.push_back({&objects.all[i], 0, kPiece});
  for (SpilledObject& object : objects.all) object.owner = &objects;
  // The first is lost, or the third, which nobody has written, is guessed at its place.
  uses.push_back({&objects.all[lost == 0 ? 0 : 2], kPiece, kPiece});
  stager.begin(uses, 1);
  for (size_t use = 0; use < 2; ++use) {
    std::memset(stager.wait(use).value(), 7, kPiece);
    finish(stager, use, 0, kPiece);
  }
  stager.flush();
  CHECK(stager.bytes_read() == 0);
  stager.forget(&objects);
  CHECK(io.in_flight() == 0);
}

TEST_CASE("room is used as soon as a write has made it, whatever the caller does meanwhile") {
  const auto device = open_cpu_device(1).value();
  Objects objects(4, 2);
  FakeIo io({.seed = 5});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(4 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 2 * objects.stride), true);
  std::vector<SpillUse> uses;
  for (SpilledObject& object : objects.all) uses.push_back({&object, 0, 2 * kPiece});
  stager.begin(uses);
  for (size_t use = 0; use < uses.size(); ++use) {
    std::memset(stager.wait(use).value(), 1, 2 * kPiece);
    finish(stager, use, 0, 2 * kPiece);
  }
  stager.flush();
  for (SpillUse& use : uses) use.read_bytes = 2 * kPiece;
  stager.begin(uses);  // Two of four fit.
  REQUIRE(stager.wait(0).ok());
  finish(stager, 0, 0, 2 * kPiece);
  // The second and the third are read, and nobody asks for them.
  const double deadline = steady_seconds() + 60;
  while (io.reads() < 3 && steady_seconds() < deadline) std::this_thread::yield();
  CHECK(io.reads() == 3);
  for (size_t use = 1; use < uses.size(); ++use) {
    REQUIRE(stager.wait(use).ok());
    stager.finish(use, {});
  }
}

TEST_CASE("a small change does not keep its object's room until it is home") {
  const auto device = open_cpu_device(1).value();
  constexpr uint64_t kPieces = 16;
  Objects objects(3, kPieces);
  FakeIo io({.seed = 6});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(3 * objects.stride);
  const uint64_t outbox = GENERATE(uint64_t{0}, 2 * kIoAlignment);
  SpillStager stager(queue, file, ring(*device, 2 * objects.stride + outbox), true, outbox);
  std::vector<SpillUse> uses;
  for (SpilledObject& object : objects.all) uses.push_back({&object, 0, kPieces * kPiece});
  stager.begin(uses);
  for (size_t use = 0; use < uses.size(); ++use) {
    std::memset(stager.wait(use).value(), 1, kPieces * kPiece);
    finish(stager, use, 0, kPieces * kPiece);
  }
  stager.flush();
  for (SpillUse& use : uses) use.read_bytes = kPieces * kPiece;
  uses.push_back(uses.front());
  stager.begin(uses);
  for (size_t use = 0; use < 2; ++use) {
    const double deadline = steady_seconds() + 60;
    while (!stager.ready(use) && steady_seconds() < deadline) std::this_thread::yield();
  }
  io.hold();
  std::memset(stager.wait(0).value(), 2, kPiece);
  finish(stager, 0, 0, kPiece);
  // The write, and with its bytes copied the third object's read.
  CHECK(io.in_flight() == (outbox == 0 ? 1 : 2));
  io.release();
  for (size_t use = 1; use < uses.size(); ++use) {
    const std::byte* memory = stager.wait(use).value();
    CHECK(memory[0] == std::byte(use == 3 ? 2 : 1));
    CHECK(memory[2 * kPiece] == std::byte{1});
    stager.finish(use, {});
  }
  stager.flush();
}

TEST_CASE("a copy that cannot be written is its object's failure") {
  const auto device = open_cpu_device(1).value();
  constexpr uint64_t kPieces = 16;
  Objects objects(2, kPieces);
  FakeIo io({.seed = 8});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(2 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 2 * objects.stride + kIoAlignment), true,
                     kIoAlignment);
  std::vector<SpillUse> uses;
  for (SpilledObject& object : objects.all) uses.push_back({&object, 0, kPieces * kPiece});
  stager.begin(uses);
  for (size_t use = 0; use < uses.size(); ++use) {
    std::memset(stager.wait(use).value(), 1, kPieces * kPiece);
    if (use == 0) {
      stager.flush();
      io.add_fault({.effect = IoFault::Effect::kError,
                    .kind = IoRequest::Kind::kWrite,
                    .end = objects.stride,
                    .error = ENOSPC});
    }
    finish(stager, use, 0, use == 0 ? kPiece : kPieces * kPiece);
  }
  stager.flush();
  stager.begin(uses);
  CHECK(stager.wait(0).status().code() == Code::kIoError);
  stager.finish(0, {});
  CHECK(stager.wait(1).ok());
  stager.finish(1, {});
  stager.flush();
}

// One sweep over the first `count` objects: each is filled, or checked and filled again.
void sweep_over(SpillStager& stager, size_t count, std::optional<int> before, int after) {
  for (size_t use = 0; use < count; ++use) {
    const Result<std::byte*> memory = stager.wait(use);
    REQUIRE(memory.ok());
    if (before) CHECK(memory.value()[kPiece - 1] == std::byte(*before));
    std::memset(memory.value(), after, kPiece);
    finish(stager, use, 0, kPiece);
  }
}

TEST_CASE("what was guessed is read while a sweep ends, and once") {
  const auto device = open_cpu_device(1).value();
  Objects objects(4, 1);
  FakeIo io({.seed = 7});
  TransferQueue queue(io, nullptr);
  const File file = test::memory_file(4 * objects.stride);
  SpillStager stager(queue, file, ring(*device, 4 * objects.stride), true);
  std::vector<SpillUse> fresh, again;
  for (SpilledObject& object : objects.all) {
    fresh.push_back({&object, 0, kPiece});
    again.push_back({&object, kPiece, kPiece});
  }
  fresh.insert(fresh.end(), again.begin(), again.begin() + 2);
  stager.begin(fresh, 2);
  sweep_over(stager, 4, {}, 1);
  stager.flush();
  const auto read = [&](uint64_t objects_read) { return objects_read * kIoAlignment; };
  SECTION("they come true") {
    CHECK(stager.bytes_read() == read(2));
    stager.begin(again);
    sweep_over(stager, 4, 1, 2);
    CHECK(stager.bytes_read() == read(4));
  }
  SECTION("they do not") {
    std::swap(again[0], again[3]);
    stager.begin(again);
    sweep_over(stager, 4, 1, 2);
    CHECK(stager.bytes_read() == read(6));
  }
  SECTION("nothing follows") {
    stager.abandon();
    stager.begin(std::span(again).first(1));
    sweep_over(stager, 1, 1, 2);
    CHECK(stager.bytes_read() == read(3));
  }
}

TEST_CASE("an abandoned sweep leaves nothing behind") {
  const auto device = open_cpu_device(1).value();
  for (uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    Objects objects(4, 2);
    FakeIo io({.seed = seed});
    TransferQueue queue(io, nullptr);
    const File file = test::memory_file(4 * objects.stride);
    SpillStager stager(queue, file, ring(*device, 3 * objects.stride), true);
    std::vector<SpillUse> uses;
    for (SpilledObject& object : objects.all) uses.push_back({&object, 0, 2 * kPiece});
    stager.begin(uses);
    for (size_t use = 0; use < seed % 4; ++use) {
      std::memset(stager.wait(use).value(), 1, 2 * kPiece);
      finish(stager, use, 0, 2 * kPiece);
    }
    if (seed % 2 == 0) CHECK(stager.wait(seed % 4).ok());  // In use when the sweep ends
    stager.abandon();
    CHECK(io.in_flight() == 0);
    stager.begin(uses);
    for (size_t use = 0; use < uses.size(); ++use) {
      REQUIRE(stager.wait(use).ok());
      stager.finish(use, {});
    }
  }
}

}  // namespace
}  // namespace spillway::spill_stager_test
