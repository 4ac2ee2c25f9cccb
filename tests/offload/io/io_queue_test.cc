// What becomes of a system call's result: the part of offload/io/io_queue.h that no disk of a test
// makes happen when it is wanted.
#include "offload/io/io_queue.h"

#include <catch2/catch.hpp>
#include <cerrno>

namespace spillway {
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

}  // namespace
}  // namespace spillway
