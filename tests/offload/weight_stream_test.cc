// Slabs through the ring: every group's own bytes, sweep after sweep, whatever the order in which
// the disk answers.
#include "offload/weight_stream.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "offload/io/aligned_bytes.h"
#include "offload/io/checksum.h"
#include "offload/model_file/model_file.h"
#include "tests/support/fake_io.h"

namespace spillway::weight_stream_test {
namespace {

using test::FakeIo;
using test::IoFault;

// Groups of 0 to 3 slabs of one to five pages, each filled with its own number.
struct Fixture {
  explicit Fixture(uint64_t seed) : io({.seed = seed}) {
    std::mt19937_64 random(seed);
    uint64_t offset = 0;
    std::vector<uint64_t> group_bytes(kGroups);
    for (uint32_t group = 0; group < kGroups; ++group) {
      for (uint64_t i = random() % 4; i > 0; --i) {
        StreamedSlab slab;
        slab.slab = static_cast<uint32_t>(slabs.size());
        slab.group = group;
        slab.offset = offset;
        slab.bytes = (1 + random() % 5) * kFileAlignment;
        slab.seed = random();
        offset += slab.bytes;
        group_bytes[group] += slab.bytes;
        slab_max = std::max(slab_max, slab.bytes);
        slabs.push_back(slab);
      }
      group_max = std::max(group_max, group_bytes[group]);
    }
    all_bytes = offset;
    file = test::memory_file(std::max<uint64_t>(offset, 1));
    path = file.path();
    for (StreamedSlab& slab : slabs) {
      AlignedBytes memory;
      const auto bytes = memory.reserve(slab.bytes).first(slab.bytes);
      std::memset(bytes.data(), static_cast<int>(slab.slab + 1), bytes.size());
      slab.checksum = seeded_checksum(bytes, slab.seed);
      REQUIRE(file.write(slab.offset, bytes).ok());
    }
  }

  WeightStream open(uint64_t ring_bytes, bool prefetch, VerifyReads verify = VerifyReads::kEvery) {
    return WeightStream(queue, std::move(file), slabs,
                        device->allocate(Memory::kDevice, ring_bytes).value(), prefetch, verify);
  }
  void damage(const StreamedSlab& slab) {
    io.add_fault({.effect = IoFault::Effect::kFlipBit,
                  .path_part = path,
                  .begin = slab.offset,
                  .end = slab.offset + slab.bytes});
  }

  static constexpr uint32_t kGroups = 7;
  std::unique_ptr<Device> device = open_cpu_device(1).value();
  FakeIo io;
  TransferQueue queue{io, nullptr};
  File file;
  std::string path;
  std::vector<StreamedSlab> slabs;
  uint64_t group_max = 0, slab_max = 0, all_bytes = 0;
};

void check_group(WeightStream& stream, const Fixture& fixture, uint32_t group) {
  const Result<WeightStream::Range> range = stream.acquire(group);
  INFO(range.status().message());
  REQUIRE(range.ok());
  size_t expected = 0;
  for (const StreamedSlab& slab : fixture.slabs) expected += slab.group == group;
  CHECK(range->last - range->first == expected);
  for (size_t i = range->first; i < range->last; ++i) {
    CHECK(stream.slabs()[i].group == group);
    for (uint64_t at = 0; at < stream.slabs()[i].bytes; at += 509) {
      REQUIRE(stream.data(i)[at] == std::byte{static_cast<uint8_t>(stream.slabs()[i].slab + 1)});
    }
  }
}

TEST_CASE("every group arrives whole, sweep after sweep, in the smallest ring and in large ones") {
  const auto seed = GENERATE(range(uint64_t{0}, uint64_t{200}));
  INFO("seed " << seed);
  Fixture f(seed);
  if (f.slabs.empty()) return;
  const uint64_t least = StagingRing::bytes_for(f.group_max, f.slab_max);
  const uint64_t bytes = least + seed % 3 * f.all_bytes;
  WeightStream stream = f.open(bytes, seed % 4 != 0);
  for (int sweep = 0; sweep < 5; ++sweep) {
    for (uint32_t group = 0; group < Fixture::kGroups; ++group) {
      check_group(stream, f, group);
      if (sweep == 2 && group == seed % Fixture::kGroups) {
        stream.restart();
        break;
      }
      stream.release(group);
    }
  }
}

TEST_CASE("a slab of several reads is made once all of them are there") {
  const auto seed = GENERATE(range(uint64_t{0}, uint64_t{60}));
  INFO("seed " << seed);
  Fixture f(seed);
  if (f.slabs.empty()) return;
  // Each page is a read of its own, to the mirrored place; making a slab turns all bits.
  const File file = std::move(f.file);
  for (StreamedSlab& slab : f.slabs) {
    for (uint64_t at = 0; at < slab.bytes; at += kFileAlignment) {
      slab.reads.push_back(
          {&file, slab.offset + at, kFileAlignment, slab.bytes - kFileAlignment - at});
    }
  }
  std::atomic<int> made = 0, failures = 0;
  const auto make = [&](uint32_t slab, std::span<std::byte> memory, bool compare) -> Status {
    if (!compare) return corruption("every read is to be compared");
    if (memory.size() != f.slabs[slab].bytes) return corruption("of another size");
    for (const std::byte byte : memory) {
      if (byte != std::byte{static_cast<uint8_t>(slab + 1)}) return corruption("not whole");
    }
    if (failures > 0 && failures-- > 0) return corruption("not yet");
    for (std::byte& byte : memory) byte = ~byte;
    ++made;
    return {};
  };
  WeightStream stream(
      f.queue, File(), f.slabs,
      f.device
          ->allocate(Memory::kDevice,
                     StagingRing::bytes_for(f.group_max, f.slab_max) + seed % 3 * f.all_bytes)
          .value(),
      seed % 4 != 0, VerifyReads::kEvery, make);
  for (int sweep = 0; sweep < 3; ++sweep) {
    for (uint32_t group = 0; group < Fixture::kGroups; ++group) {
      if (sweep == 1) failures = 1;  // The slab is read, or made, once more.
      const Result<WeightStream::Range> range = stream.acquire(group);
      INFO(range.status().message());
      REQUIRE(range.ok());
      for (size_t i = range->first; i < range->last; ++i) {
        for (uint64_t at = 0; at < f.slabs[i].bytes; at += 509) {
          REQUIRE(stream.data(i)[at] == ~std::byte{static_cast<uint8_t>(f.slabs[i].slab + 1)});
        }
      }
      if (sweep == 1 && group == seed % Fixture::kGroups) {
        stream.restart();
        break;
      }
      stream.release(group);
    }
  }
  CHECK(made >= static_cast<int>(2 * f.slabs.size()));
  // A slab that cannot be made is an error, and a restart serves again.
  stream.restart();
  failures = 1 << 20;
  Status failed;
  for (uint32_t group = 0; group < Fixture::kGroups && failed.ok(); ++group) {
    failed = stream.acquire(group).status();
    if (failed.ok()) stream.release(group);
  }
  // (The stream may have had all slabs in its ring.)
  if (!failed.ok()) CHECK(failed.message() == "not yet");
  failures = 0;
  stream.restart();
  for (uint32_t group = 0; group < Fixture::kGroups; ++group) {
    REQUIRE(stream.acquire(group).ok());
    stream.release(group);
  }
}

TEST_CASE("a bad slab is named, and a restart serves again") {
  Fixture f(11);
  REQUIRE(f.slabs.size() > 3);
  const StreamedSlab bad = f.slabs[2];
  f.damage(bad);
  WeightStream stream = f.open(StagingRing::bytes_for(2 * f.group_max, f.slab_max), true);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t group = 0; group < bad.group; ++group) {
      check_group(stream, f, group);
      stream.release(group);
    }
    const Status status = stream.acquire(bad.group).status();
    CHECK(status.code() == Code::kCorruption);
    const std::string message(status.message());
    CHECK(message.find("slab " + std::to_string(bad.slab)) != std::string::npos);
    CHECK(message.find(f.path) != std::string::npos);
    stream.restart();
  }
  f.io.clear_faults();
  for (uint32_t group = 0; group < Fixture::kGroups; ++group) {
    check_group(stream, f, group);
    stream.release(group);
  }
}

// Sweeps until a slab does not match, at most `most` of them; 0: none did.
int sweeps_until_found(WeightStream& stream, int most) {
  for (int sweep = 1; sweep <= most; ++sweep) {
    for (uint32_t group = 0; group < Fixture::kGroups; ++group) {
      if (!stream.acquire(group).ok()) return sweep;
      stream.release(group);
    }
  }
  return 0;
}

TEST_CASE("a slab that is damaged between two reads is found by the reads that are verified") {
  const auto verify = GENERATE(VerifyReads::kEvery, VerifyReads::kSample, VerifyReads::kFirst);
  const auto seed = GENERATE(range(uint64_t{10}, uint64_t{20}));
  INFO("seed " << seed << ", verify " << static_cast<int>(verify));
  Fixture f(seed);
  REQUIRE(f.slabs.size() > 5);
  // Without reading ahead, so that what is read after the damage is known.
  const uint64_t ring = StagingRing::bytes_for(2 * f.group_max, f.slab_max);
  WeightStream stream = f.open(ring, false, verify);
  REQUIRE(sweeps_until_found(stream, 1) == 0);
  f.damage(f.slabs[1]);
  const int found = sweeps_until_found(stream, 9);
  if (verify == VerifyReads::kEvery) CHECK(found == 1);
  if (verify == VerifyReads::kSample) CHECK((found >= 1 && found <= 8));
  if (verify == VerifyReads::kFirst) {
    CHECK(found == 0);
    return;
  }
  // Whoever was well before is looked at again.
  f.io.clear_faults();
  f.damage(f.slabs[4]);
  stream.restart();
  CHECK(sweeps_until_found(stream, 1) == 1);
}

TEST_CASE("the first read of every slab is verified, whichever others are") {
  const auto verify = GENERATE(VerifyReads::kSample, VerifyReads::kFirst);
  Fixture f(11);
  f.damage(f.slabs.back());
  WeightStream stream = f.open(StagingRing::bytes_for(2 * f.group_max, f.slab_max), true, verify);
  CHECK(sweeps_until_found(stream, 1) == 1);
  // What failed is read and verified again until it is well.
  stream.restart();
  CHECK(sweeps_until_found(stream, 1) == 1);
  f.io.clear_faults();
  stream.restart();
  CHECK(sweeps_until_found(stream, 1) == 0);
}

}  // namespace
}  // namespace spillway::weight_stream_test
