#include "offload/io/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "offload/io/file.h"

namespace spillway {

namespace {

// Error code of a file that ended before the request did. No errno is negative.
constexpr int kEndOfFile = -1;

// Calls that move nothing before EINTR or EAGAIN becomes the request's error.
constexpr int kRetriesMax = 1000;

// The alignment of O_DIRECT transfers, at least.
constexpr uint64_t kSectorBytes = 512;

}  // namespace

IoPart::Next IoPart::advance(int64_t result) {
  if (result > 0) {
    moved_bytes += static_cast<size_t>(result);
    retries = 0;
    return moved_bytes == bytes ? Next::kDone : Next::kContinue;
  }
  const bool read = request->kind == IoRequest::Kind::kRead;
  error = static_cast<int>(-result);
  if ((error == EINTR || error == EAGAIN) && retries < kRetriesMax) {
    error = 0;
    ++retries;
    return Next::kContinue;
  }
  // A write that moves nothing without an error would be repeated for ever.
  if (error == 0) error = read ? kEndOfFile : EIO;
  // An O_DIRECT read that ends inside a sector has reached the end of the file; a read from there
  // is refused as misaligned.
  if (error == EINVAL && read && moved_bytes > 0 && (offset + moved_bytes) % kSectorBytes != 0) {
    error = kEndOfFile;
  }
  return Next::kError;
}

void IoQueue::push(IoRequest& request) {
  SPILLWAY_CHECK(request.file != nullptr && request.memory != nullptr);
  SPILLWAY_CHECK(request.done != nullptr && request.bytes > 0);
  request.next = nullptr;
  request.submitted_bytes = request.completed_bytes = 0;
  request.parts_in_flight = 0;
  request.error = 0;
  request.failed = nullptr;
  (tail_ == nullptr ? head_ : tail_->next) = &request;
  tail_ = &request;
}

void IoQueue::pop() {
  head_ = head_->next;
  if (head_ == nullptr) tail_ = nullptr;
}

std::optional<IoPart> IoQueue::take() {
  if (head_ == nullptr) return std::nullopt;
  IoRequest& request = *head_;
  const File::Place place =
      request.file->place(request.offset + request.submitted_bytes,
                          std::min(request.bytes - request.submitted_bytes, part_bytes_max_));
  IoPart part{.request = &request,
              .file = place.file,
              .offset = place.offset,
              .memory = request.memory + request.submitted_bytes,
              .bytes = place.bytes};
  request.submitted_bytes += part.bytes;
  ++request.parts_in_flight;
  if (request.submitted_bytes == request.bytes) pop();
  return part;
}

bool IoQueue::finish(const IoPart& part) {
  IoRequest& request = *part.request;
  request.completed_bytes += part.moved_bytes;
  if (request.error == 0 && part.error != 0) {
    request.error = part.error;
    request.failed = part.file;
  }
  --request.parts_in_flight;
  if (request.error != 0 && request.submitted_bytes < request.bytes) {
    SPILLWAY_CHECK(head_ == &request);
    request.submitted_bytes = request.bytes;
    pop();
  }
  return request.parts_in_flight == 0 && request.submitted_bytes == request.bytes;
}

void deliver(IoRequest& request) {
  if (request.error == 0) {
    SPILLWAY_CHECK(request.completed_bytes == request.bytes);
    request.done(request, {});
    return;
  }
  const bool read = request.kind == IoRequest::Kind::kRead;
  const std::string& path = request.failed->path();
  const std::string range =
      std::to_string(request.bytes) + " bytes at " + std::to_string(request.offset);
  if (request.error == kEndOfFile) {
    request.done(request, corruption(path + " ends too early (reading " + range + ")"));
    return;
  }
  request.done(request, io_error((read ? "read " : "write ") + path + ", " + range, request.error));
}

Status check_io_options(const IoOptions& options) {
  constexpr int kAtOnceMax = 4096;
  constexpr size_t kPartBytesMax = size_t{1} << 30;  // One system call moves less than 2 GiB.
  if (options.depth < 1 || options.depth > kAtOnceMax || options.threads < 1 ||
      options.threads > kAtOnceMax) {
    return invalid_argument("I/O depth " + std::to_string(options.depth) + " and threads " +
                            std::to_string(options.threads) + " must be in 1.." +
                            std::to_string(kAtOnceMax));
  }
  if (options.part_bytes_max == 0 || options.part_bytes_max > kPartBytesMax ||
      options.part_bytes_max % kIoAlignment != 0) {
    return invalid_argument("I/O parts of " + std::to_string(options.part_bytes_max) +
                            " bytes: must be a multiple of " + std::to_string(kIoAlignment) +
                            " up to 1 GiB");
  }
  return {};
}

}  // namespace spillway
