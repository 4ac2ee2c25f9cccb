// A ring of device memory, the staging buffer for data that lives in host memory. One stream
// uploads (h2d), ahead of the compute stream while the ring has space; another writes changes back
// (d2h), behind it. Only sync() and clear() block the host: events alone order copies and work.
//
// For discrete devices. Owned by the store that streams through it. Thread rule: the thread of the
// compute stream.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "kernels/device.h"
#include "offload/io/byte_range.h"
#include "offload/io/staging_ring.h"

namespace spillway {

class DeviceRing {
 public:
  // `memory` is the device's; it holds what StagingRing::bytes_for() says. `what` names the copies.
  // Device, compute stream and memory must outlive the ring.
  DeviceRing(Device& device, Stream& compute, std::span<std::byte> memory, const std::string& what);
  ~DeviceRing();  // Waits for the copies under way.

  // Allocates `bytes` and queues the upload of the first `read_bytes` of them from host memory at
  // `from`, once `ready` has happened. Null: the ring is full until older pieces are finished. The
  // compute stream sees the bytes after arrive().
  std::byte* upload(const std::byte* from, uint64_t read_bytes, uint64_t bytes, Event ready = {});

  // The same for bytes that lie apart in host memory: a part goes to its place in the piece.
  struct Part {
    std::byte* host = nullptr;
    uint64_t at = 0, bytes = 0;
  };
  std::byte* upload(std::span<const Part> parts, uint64_t bytes);

  // Makes later work of the compute stream wait for all uploads so far.
  void arrive();

  // Happens when the host memory of all uploads so far may be reused.
  Event copied() { return up_->record(); }

  // Frees the oldest `pieces`: later work of the compute stream does not use them.
  void finish(size_t pieces);

  // Frees the oldest piece and writes its `changes` back to host memory at `to`; the event
  // happens when they are there.
  Event write_back(std::byte* to, std::span<const ByteRange> changes);
  Event write_back(std::span<const Part> changes);

  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }

  // Blocks until all copies so far are done; the first error.
  Status sync();

  // Blocks until all copies are done, and frees all pieces.
  void clear();

 private:
  std::byte* take(uint64_t bytes);

  Stream& compute_;
  std::unique_ptr<Stream> up_, down_;
  StagingRing ring_;
  std::deque<std::byte*> pieces_;  // In use, oldest first
  std::deque<Event> finished_;     // For freed pieces before these: their memory is reusable
  uint64_t h2d_bytes_ = 0, d2h_bytes_ = 0;
};

}  // namespace spillway
