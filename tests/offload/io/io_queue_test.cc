// Requests cut into parts, and what becomes of a system call's result: what no disk of a test makes
// happen when it is wanted.
#include "offload/io/io_queue.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <string>

#include "offload/io/file.h"
#include "tests/support/fake_io.h"

namespace spillway::io_queue_test {
namespace {

using Next = IoPart::Next;

struct Part {
  explicit Part(IoRequest::Kind kind, uint64_t offset = 0) {
    request.kind = kind;
    part = {.request = &request, .offset = offset, .bytes = 8192};
  }
  IoRequest request;
  IoPart part;
};

TEST_CASE("io part: a short transfer goes on where it stopped") {
  Part one(IoRequest::Kind::kRead);
  CHECK(one.part.advance(4096) == Next::kContinue);
  CHECK(one.part.moved_bytes == 4096);
  CHECK(one.part.advance(4095) == Next::kContinue);
  CHECK(one.part.advance(1) == Next::kDone);
  CHECK(one.part.moved_bytes == 8192);
  CHECK(one.part.error == 0);
}

TEST_CASE("io part: EINTR and EAGAIN are tried again, but not for ever") {
  const int error = GENERATE(EINTR, EAGAIN);
  Part one(IoRequest::Kind::kWrite);
  const auto retries = [&] {
    int count = 0;
    while (count < 100'000 && one.part.advance(-error) == Next::kContinue) ++count;
    return count;
  };
  for (int i = 0; i < 10; ++i) CHECK(one.part.advance(-error) == Next::kContinue);
  CHECK(one.part.error == 0);
  CHECK(one.part.advance(512) == Next::kContinue);  // Progress: the count begins anew.
  const int count = retries();
  CHECK(count >= 100);
  CHECK(count < 100'000);
  CHECK(one.part.error == error);
}

TEST_CASE("io part: moving nothing is an error, of a file that ends or of the disk") {
  Part read(IoRequest::Kind::kRead);
  CHECK(read.part.advance(0) == Next::kError);
  CHECK(read.part.error == -1);  // The file ended.
  Part write(IoRequest::Kind::kWrite);
  CHECK(write.part.advance(0) == Next::kError);
  CHECK(write.part.error == EIO);
}

// What Linux says to an O_DIRECT read that goes on from the odd end of a file.
TEST_CASE("io part: EINVAL inside a sector is the end of the file, elsewhere it is EINVAL") {
  Part inside(IoRequest::Kind::kRead, 4096);
  CHECK(inside.part.advance(1000) == Next::kContinue);
  CHECK(inside.part.advance(-EINVAL) == Next::kError);
  CHECK(inside.part.error == -1);
  Part between(IoRequest::Kind::kRead, 4096);
  CHECK(between.part.advance(1024) == Next::kContinue);
  CHECK(between.part.advance(-EINVAL) == Next::kError);
  CHECK(between.part.error == EINVAL);
  Part at_once(IoRequest::Kind::kRead, 4097);
  CHECK(at_once.part.advance(-EINVAL) == Next::kError);
  CHECK(at_once.part.error == EINVAL);
  Part write(IoRequest::Kind::kWrite);
  CHECK(write.part.advance(1000) == Next::kContinue);
  CHECK(write.part.advance(-EINVAL) == Next::kError);
  CHECK(write.part.error == EINVAL);
}

// Requests to a file of zeros; `outcome` is what done() was told.
struct Requests {
  IoRequest request(uint64_t offset, size_t bytes) {
    IoRequest one;
    one.file = &file;
    one.offset = offset;
    one.memory = memory;
    one.bytes = bytes;
    one.done = [](IoRequest& ended, Status status) {
      *static_cast<Status*>(ended.owner) = std::move(status);
    };
    one.owner = &outcome;
    return one;
  }
  const File file = test::memory_file(4096);
  std::byte memory[1] = {};
  Status outcome = invalid_argument("not done");
};

TEST_CASE("io queue: requests leave in order, in parts, and each ends with its last part") {
  Requests all;
  IoRequest long_one = all.request(1000, 250), short_one = all.request(0, 10);
  IoQueue queue(100);
  CHECK(queue.empty());
  queue.push(long_one);
  queue.push(short_one);
  std::vector<IoPart> parts;
  while (auto part = queue.take()) parts.push_back(*part);
  CHECK(queue.empty());
  REQUIRE(parts.size() == 4);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].request == &long_one);
    CHECK(parts[i].offset == 1000 + 100 * i);
    CHECK(parts[i].memory == all.memory + 100 * i);
    CHECK(parts[i].bytes == (i < 2 ? 100 : 50));
  }
  CHECK(parts[3].request == &short_one);
  for (IoPart& part : parts) part.moved_bytes = part.bytes;
  CHECK_FALSE(queue.finish(parts[2]));
  CHECK(queue.finish(parts[3]));
  CHECK_FALSE(queue.finish(parts[0]));
  CHECK(queue.finish(parts[1]));
  deliver(long_one);
  CHECK(all.outcome.ok());
}

TEST_CASE("io queue: a request with an error starts no further parts, and says what failed") {
  Requests all;
  IoRequest broken = all.request(4096, 300), next = all.request(0, 10);
  IoQueue queue(100);
  queue.push(broken);
  queue.push(next);
  IoPart first = *queue.take(), second = *queue.take();
  first.error = EIO;
  CHECK_FALSE(queue.finish(first));  // The second part is under way.
  second.error = ENOSPC;
  CHECK(queue.finish(second));
  CHECK(queue.take()->request == &next);
  deliver(broken);
  CHECK(all.outcome.code() == Code::kIoError);
  const std::string message(all.outcome.message());
  INFO(message);
  CHECK(message.find("300 bytes at 4096") != std::string::npos);
  CHECK(message.find("nput/output error") != std::string::npos);  // The first error, not the last
}

TEST_CASE("io queue: a file that ends too early is corrupt") {
  Requests all;
  IoRequest request = all.request(0, 100);
  IoQueue queue(100);
  queue.push(request);
  IoPart part = *queue.take();
  REQUIRE(part.advance(0) == Next::kError);
  CHECK(queue.finish(part));
  deliver(request);
  CHECK(all.outcome.code() == Code::kCorruption);
}

TEST_CASE("io options outside their bounds are refused") {
  CHECK(check_io_options({}).ok());
  CHECK(check_io_options({.depth = 4096, .part_bytes_max = size_t{1} << 30, .threads = 4096}).ok());
  CHECK_FALSE(check_io_options({.depth = 0}).ok());
  CHECK_FALSE(check_io_options({.depth = 4097}).ok());
  CHECK_FALSE(check_io_options({.threads = 0}).ok());
  CHECK_FALSE(check_io_options({.part_bytes_max = 0}).ok());
  CHECK_FALSE(check_io_options({.part_bytes_max = kIoAlignment + 512}).ok());
  CHECK_FALSE(check_io_options({.part_bytes_max = (size_t{1} << 30) + kIoAlignment}).ok());
}

}  // namespace
}  // namespace spillway::io_queue_test
