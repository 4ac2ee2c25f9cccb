// Device memory through which what lives in host memory passes. One stream brings it, ahead of the
// compute stream as far as there is room; another takes home what changed, behind it. No call
// blocks the host but sync() and clear(): the order of copies and work is kept by events alone.
//
// For devices with memory of their own. Owned by what streams through it; the thread of the compute
// stream.
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

  // Room for `bytes`, into which the first `read_bytes` are copied from host memory at `from` once
  // `ready` has happened. Null: no room until older pieces are finished. The compute stream sees it
  // after arrive().
  std::byte* bring(const std::byte* from, uint64_t read_bytes, uint64_t bytes, Event ready = {});

  // What the compute stream is given from now on finds everything brought so far.
  void arrive();

  // When the host memory that was brought from is free again.
  Event copied() { return up_->record(); }

  // The oldest pieces are used by nothing that the compute stream is given from now on.
  void finish(size_t pieces);

  // The same of one, whose `changes` go to host memory at `home`; when they are there.
  Event write_back(std::byte* home, std::span<const ByteRange> changes);

  uint64_t h2d_bytes() const { return h2d_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }

  // Blocks until all copies so far are done; the first error.
  Status sync();

  // Blocks, and forgets all pieces.
  void clear();

 private:
  Stream& compute_;
  std::unique_ptr<Stream> up_, down_;
  StagingRing ring_;
  std::deque<std::byte*> pieces_;  // In use, oldest first
  std::deque<Event> finished_;     // Of the pieces before these: when their memory is free
  uint64_t h2d_bytes_ = 0, d2h_bytes_ = 0;
};

}  // namespace spillway
