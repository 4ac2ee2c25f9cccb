#include "offload/io/disk_speed.h"

#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "offload/io/aligned_bytes.h"
#include "offload/io/spill_file.h"
#include "tests/support/fake_io.h"
#include "tests/support/temp_directory.h"

namespace spillway::disk_speed_test {
namespace {

constexpr size_t kRequestBytes = size_t{1} << 16;

}  // namespace

TEST_CASE("disk speed: every place of the file in turn, as often as the probe asks for") {
  test::FakeIo io({.seed = 4});
  const File file = test::memory_file(10 * kRequestBytes + 100);
  AlignedBytes owner;
  const auto memory = owner.reserve(4 * kRequestBytes);
  std::memset(memory.data(), 3, memory.size());
  const DiskProbe probe{
      .bytes_max = 25 * kRequestBytes + 1, .seconds_max = 60, .request_bytes = kRequestBytes};

  const DiskSpeed written = measure_disk_write(io, file, memory, probe).value();
  CHECK(io.writes() == 25);
  CHECK(written.bytes == 25 * kRequestBytes);
  CHECK(written.seconds > 0);
  std::vector<std::byte> content(10 * kRequestBytes);
  REQUIRE(file.read(0, content).ok());
  CHECK(content == std::vector<std::byte>(content.size(), std::byte{3}));

  const DiskSpeed read = measure_disk_read(io, file, memory, probe).value();
  CHECK(io.reads() == 25);
  CHECK(read.bytes == 25 * kRequestBytes);

  DiskProbe checked = probe;
  checked.checksum = true;
  CHECK(measure_disk_read(io, file, memory, checked).value().bytes == 25 * kRequestBytes);
}

TEST_CASE("disk speed: what was never written is not read, if the probe says so") {
  // File systems tell holes in units of their own: memory with huge pages, of 2 MiB. A request is
  // no divisor of that, so that none begins at a multiple of its size.
  constexpr size_t kUnit = size_t{2} << 20;
  constexpr size_t kOddBytes = 3 * kRequestBytes;
  test::FakeIo io({.seed = 4});
  const File file = test::memory_file(4 * kUnit);  // All holes
  AlignedBytes owner;
  const auto memory = owner.reserve(kOddBytes);  // One request at a time: the last one's bytes stay
  DiskProbe probe{.seconds_max = 60, .request_bytes = kOddBytes, .data_only = true};
  const auto empty = measure_disk_read(io, file, memory, probe);
  CHECK(empty.status().code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(empty.status().message()), Catch::Contains("were written"));
  const std::vector<std::byte> written(kUnit, std::byte{7});  // Ten places and two thirds
  REQUIRE(file.write(2 * kUnit, written).ok());
  for (int last = 1; last <= 14; ++last) {
    probe.bytes_max = static_cast<uint64_t>(last) * kOddBytes;
    std::memset(memory.data(), 0, memory.size());
    CHECK(measure_disk_read(io, file, memory, probe).value().bytes == probe.bytes_max);
    CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{7}; }));
  }
}

TEST_CASE("disk speed: a probe begins where it is told, and goes on at the file's start") {
  test::FakeIo io({.seed = 4});
  const File file = test::memory_file(10 * kRequestBytes);
  for (int place = 0; place < 10; ++place) {
    const std::vector<std::byte> content(kRequestBytes, std::byte(place));
    REQUIRE(file.write(static_cast<uint64_t>(place) * kRequestBytes, content).ok());
  }
  AlignedBytes owner;
  const auto memory = owner.reserve(kRequestBytes);  // One request at a time: the last one's stay
  for (const int count : {1, 4, 5, 9}) {
    const DiskProbe probe{.bytes_max = static_cast<uint64_t>(count) * kRequestBytes,
                          .seconds_max = 60,
                          .request_bytes = kRequestBytes,
                          .from = 0.6};
    REQUIRE(measure_disk_read(io, file, memory, probe).ok());
    CHECK(memory[0] == std::byte((6 + count - 1) % 10));
  }
}

TEST_CASE("disk speed: the rate is that of the disk, and time ends the probe too") {
  test::FakeIo io({.seed = 4});
  const File file = test::memory_file(10 * kRequestBytes);
  AlignedBytes owner;
  const auto memory = owner.reserve(kRequestBytes);  // One request at a time
  io.add_fault({.effect = test::IoFault::Effect::kSlow, .seconds = 0.02});
  const DiskSpeed speed =
      measure_disk_read(io, file, memory, {.seconds_max = 0.1, .request_bytes = kRequestBytes})
          .value();
  // At most 5 were started before the end, and each took 20 ms or, on a busy machine, more.
  CHECK(speed.bytes >= kRequestBytes);
  CHECK(speed.bytes <= 6 * kRequestBytes);
  CHECK(speed.bytes_per_second() <= kRequestBytes / 0.02);
}

TEST_CASE("disk speed: errors and files that are too short") {
  test::FakeIo io({.seed = 4});
  AlignedBytes owner;
  const auto memory = owner.reserve(4 * kRequestBytes);
  const DiskProbe probe{.bytes_max = 100 * kRequestBytes, .request_bytes = kRequestBytes};
  const File small = test::memory_file(kRequestBytes - 1);
  CHECK(measure_disk_read(io, small, memory, probe).status().code() == Code::kInvalidArgument);
  CHECK(measure_disk_write(io, small, memory, probe).status().code() == Code::kInvalidArgument);
  CHECK(io.reads() + io.writes() == 0);

  const File file = test::memory_file(10 * kRequestBytes);
  io.add_fault({.skip = 3, .count = 1});
  const Status status = measure_disk_read(io, file, memory, probe).status();
  CHECK(status.code() == Code::kIoError);
  CHECK(io.reads() < 100);
}

TEST_CASE("disk speed: of a spill file, through io_uring or threads") {
  auto io = open_io({}).value();
  const TempDirectory temp;
  const File file = SpillDirectory::open(temp.path()).value().create(size_t{32} << 20).value();
  AlignedBytes owner;
  const auto memory = owner.reserve(size_t{16} << 20);
  std::memset(memory.data(), 1, memory.size());
  const DiskProbe probe{.bytes_max = size_t{64} << 20, .seconds_max = 30};
  const DiskSpeed written = measure_disk_write(*io, file, memory, probe).value();
  const DiskSpeed read = measure_disk_read(*io, file, memory, probe).value();
  CHECK(written.bytes == size_t{64} << 20);
  CHECK(read.bytes == size_t{64} << 20);
}

TEST_CASE("disk meter: so many requests at a time, of what is not zero") {
  const auto device = open_cpu_device(1).value();
  DiskMeter meter = DiskMeter::open(*device, 4 * kRequestBytes).value();
  const TempDirectory temp;
  const File file = SpillDirectory::open(temp.path()).value().create(8 * kRequestBytes).value();
  const DiskProbe probe{
      .bytes_max = 8 * kRequestBytes, .seconds_max = 30, .request_bytes = kRequestBytes};
  CHECK(meter.write(file, probe, 1).value().bytes == 8 * kRequestBytes);
  AlignedBytes owner;
  const auto content = owner.reserve(8 * kRequestBytes);
  REQUIRE(file.read(0, content).ok());
  CHECK(std::count(content.begin(), content.end(), std::byte{0}) < std::ssize(content) / 8);
  // One at a time takes the same memory for each; four at a time take four.
  const auto piece = [&](size_t i) { return content.subspan(i * kRequestBytes, kRequestBytes); };
  CHECK(std::ranges::equal(piece(0), piece(1)));
  // (On a busy machine one may have ended, and begin anew, before the next begins.)
  const auto written_from_one = [&] {
    CHECK(meter.write(file, probe, 4).value().bytes == 8 * kRequestBytes);
    REQUIRE(file.read(0, content).ok());
    return std::ranges::equal(piece(0), piece(1));
  };
  int tries = 1;
  while (tries < 50 && written_from_one()) ++tries;
  CHECK(tries < 50);
  CHECK(meter.read(file, probe, 4).value().bytes_per_second() > 0);
}

}  // namespace spillway::disk_speed_test
