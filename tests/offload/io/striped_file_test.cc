// Several files as one: where its bytes lie, and that every backend finds them there.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <random>
#include <vector>

#include "offload/io/aligned_bytes.h"
#include "offload/io/disk_speed.h"
#include "offload/io/file.h"
#include "offload/io/io.h"
#include "tests/support/fake_io.h"
#include "tests/support/skip.h"
#include "tests/support/temp_directory.h"

namespace spillway::striped_file_test {
namespace {

constexpr uint64_t kStripe = 4096;

File new_file(const std::string& path, uint64_t bytes) {
  File file = File::open(path, O_RDWR | O_CREAT | O_TRUNC).value();
  REQUIRE(ftruncate(file.fd(), static_cast<off_t>(bytes)) == 0);
  return file;
}

File striped(const TempDirectory& temp, size_t count, uint64_t bytes, uint64_t stripe = kStripe) {
  std::vector<File> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(new_file(temp / ("part" + std::to_string(i)),
                             File::bytes_of_part(bytes, i, count, stripe)));
  }
  return File::stripe(std::move(parts), stripe);
}

void end_request(IoRequest& request, Status status) {
  static_cast<std::promise<Status>*>(request.owner)->set_value(std::move(status));
}

Status transfer(Io& io, IoRequest::Kind kind, const File& file, uint64_t offset,
                std::span<std::byte> memory) {
  std::promise<Status> ended;
  IoRequest request{.kind = kind,
                    .file = &file,
                    .offset = offset,
                    .memory = memory.data(),
                    .bytes = memory.size(),
                    .done = end_request,
                    .owner = &ended};
  io.submit(request);
  return ended.get_future().get();
}

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_CASE("striped file: each part has its stripes in turn, and all bytes have a place") {
  const TempDirectory temp;
  for (const size_t count : {2, 3, 5}) {
    for (const uint64_t bytes : {uint64_t{1}, kStripe, kStripe + 1, 2 * kStripe, 7 * kStripe + 100,
                                 30 * kStripe, 31 * kStripe - 1}) {
      const File file = striped(temp, count, bytes);
      CHECK(file.stamp().value().bytes == bytes);
      std::vector<std::vector<bool>> taken(count);
      for (size_t i = 0; i < count; ++i) taken[i].resize(file.parts()[i].stamp().value().bytes);
      for (uint64_t at = 0; at < bytes;) {
        const File::Place place = file.place(at, bytes - at);
        const auto part = static_cast<size_t>(place.file - file.parts().data());
        CHECK(part == at / kStripe % count);
        REQUIRE(place.offset + place.bytes <= taken[part].size());
        for (size_t i = 0; i < place.bytes; ++i) {
          CHECK_FALSE(taken[part][place.offset + i]);
          taken[part][place.offset + i] = true;
        }
        at += place.bytes;
      }
      for (const auto& part : taken) CHECK(std::count(part.begin(), part.end(), false) == 0);
    }
  }
}

TEST_CASE("striped file: what is written is read again, by parts and as a whole") {
  const TempDirectory temp;
  const size_t bytes = 9 * kStripe + 77;
  const File file = striped(temp, 3, bytes);
  const auto written = random_bytes(bytes);
  REQUIRE(file.write(0, written).ok());
  std::vector<std::byte> read(bytes), part(kStripe);
  REQUIRE(file.read(0, read).ok());
  CHECK(read == written);
  REQUIRE(file.parts()[1].read(kStripe, part).ok());  // The fifth stripe
  CHECK(std::equal(part.begin(), part.end(), written.begin() + 4 * kStripe));
  REQUIRE(file.read(kStripe - 5, std::span(part).first(10)).ok());
  CHECK(std::equal(part.begin(), part.begin() + 10, written.begin() + kStripe - 5));
  CHECK(file.sync().ok());
  const Status beyond = file.read(bytes - 1, std::span(part).first(2));
  CHECK(beyond.code() == Code::kCorruption);
  CHECK_THAT(std::string(beyond.message()), Catch::Contains(temp / "part0"));
}

TEST_CASE("striped file: every backend reads and writes across stripes and parts") {
  const auto backend = GENERATE(as<std::string>{}, "io_uring", "threads", "fake");
  CAPTURE(backend);
  const IoOptions options{.depth = 4, .part_bytes_max = 2 * kStripe, .threads = 3};
  std::unique_ptr<Io> io;
  if (backend == "fake") {
    io = std::make_unique<test::FakeIo>(test::FakeIoOptions{.seed = 3});
  } else {
    auto opened = backend == "io_uring" ? open_uring_io(options) : open_threads_io(options);
    if (!opened.ok()) return test::skip(std::string(opened.status().message()));
    io = std::move(opened).value();
  }
  const TempDirectory temp;
  const size_t bytes = 50 * kStripe;
  const File file = striped(temp, 3, bytes, 3 * kStripe);
  io->use_file(file);
  auto expected = random_bytes(bytes);
  REQUIRE(transfer(*io, IoRequest::Kind::kWrite, file, 0, expected).ok());
  std::vector<std::byte> read(bytes);
  REQUIRE(file.read(0, read).ok());
  CHECK(read == expected);
  std::mt19937 random(8);
  for (int i = 0; i < 50; ++i) {
    const size_t begin = random() % bytes, some = 1 + random() % (bytes - begin);
    std::vector<std::byte> memory(some);
    REQUIRE(transfer(*io, IoRequest::Kind::kRead, file, begin, memory).ok());
    CHECK(std::equal(memory.begin(), memory.end(), expected.begin() + static_cast<long>(begin)));
  }
}

TEST_CASE("striped file: an error names the part that failed") {
  const TempDirectory temp;
  std::vector<File> parts;
  parts.push_back(new_file(temp / "good", 4 * kStripe));
  parts.push_back(new_file(temp / "short", kStripe));
  const File file = File::stripe(std::move(parts), kStripe);
  CHECK(file.path() == temp / "good" + "," + temp / "short");
  std::vector<std::byte> memory(8 * kStripe);
  for (const bool uring : {true, false}) {
    auto io = uring ? open_uring_io({}) : open_threads_io({});
    if (!io.ok()) continue;
    const Status status = transfer(*io.value(), IoRequest::Kind::kRead, file, 0, memory);
    CHECK(status.code() == Code::kCorruption);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains(temp / "short" + " ends too early") && !Catch::Contains("good"));
    CHECK(transfer(*io.value(), IoRequest::Kind::kRead, file, 0, std::span(memory).first(kStripe))
              .ok());
  }
  test::FakeIo fake({.seed = 2});
  fake.add_fault({.kind = IoRequest::Kind::kWrite, .path_part = "short", .error = ENOSPC});
  CHECK(transfer(fake, IoRequest::Kind::kWrite, file, 0, std::span(memory).first(kStripe)).ok());
  const Status full =
      transfer(fake, IoRequest::Kind::kWrite, file, 0, std::span(memory).first(2 * kStripe));
  CHECK(full.code() != Code::kOk);
  CHECK_THAT(std::string(full.message()),
             Catch::Contains(temp / "short") && !Catch::Contains("good"));
}

TEST_CASE("striped file: a probe of what was written passes over holes in any part") {
  const TempDirectory temp;
  constexpr uint64_t kUnit = uint64_t{1} << 20;
  const File file = striped(temp, 2, 8 * kUnit, kUnit);
  AlignedBytes owner;
  const auto memory = owner.reserve(kUnit);
  std::memset(memory.data(), 6, memory.size());
  for (const uint64_t unit : {3, 4}) REQUIRE(file.write(unit * kUnit, memory).ok());
  test::FakeIo io({.seed = 4});
  DiskProbe probe{.bytes_max = kUnit, .seconds_max = 60, .request_bytes = kUnit, .data_only = true};
  for (const double from : {0.0, 0.6}) {
    probe.from = from;
    std::memset(memory.data(), 0, memory.size());
    REQUIRE(measure_disk_read(io, file, memory, probe).ok());
    CHECK(memory[kUnit / 2] == std::byte{6});
  }
  probe.request_bytes = kUnit / 2;
  probe.bytes_max = 4 * kUnit;
  CHECK(measure_disk_read(io, file, memory, probe).value().bytes == 4 * kUnit);
}

}  // namespace
}  // namespace spillway::striped_file_test
