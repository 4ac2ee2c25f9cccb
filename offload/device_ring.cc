#include "offload/device_ring.h"

#include "kernels/base/check.h"

namespace spillway {

DeviceRing::DeviceRing(Device& device, Stream& compute, std::span<std::byte> memory,
                       const std::string& what)
    : compute_(compute),
      up_(device.new_stream(what + ", host -> device")),
      down_(device.new_stream(what + ", device -> host")),
      ring_(memory) {
  SPILLWAY_CHECK(device.discrete());
}

DeviceRing::~DeviceRing() {
  (void)sync().ok();
}

// Memory of the ring; null: it is full.
std::byte* DeviceRing::take(uint64_t bytes) {
  std::byte* memory = ring_.take(bytes);
  while (memory == nullptr && !finished_.empty()) {
    // Waits only when the memory is needed: the wait delays all later uploads.
    up_->wait(finished_.front());
    finished_.pop_front();
    ring_.give_back();
    memory = ring_.take(bytes);
  }
  if (memory != nullptr) pieces_.push_back(memory);
  return memory;
}

std::byte* DeviceRing::upload(const std::byte* from, uint64_t read_bytes, uint64_t bytes,
                              Event ready) {
  SPILLWAY_CHECK(read_bytes <= bytes);
  std::byte* memory = take(bytes);
  if (memory == nullptr || read_bytes == 0) return memory;
  up_->wait(ready);
  up_->copy(memory, from, read_bytes);
  h2d_bytes_ += read_bytes;
  return memory;
}

std::byte* DeviceRing::upload(std::span<const Part> parts, uint64_t bytes) {
  std::byte* memory = take(bytes);
  if (memory == nullptr) return nullptr;
  for (const Part& part : parts) {
    SPILLWAY_CHECK(part.at + part.bytes <= bytes);
    if (part.bytes == 0) continue;
    up_->copy(memory + part.at, part.host, part.bytes);
    h2d_bytes_ += part.bytes;
  }
  return memory;
}

void DeviceRing::arrive() {
  compute_.wait(up_->record());
}

void DeviceRing::finish(size_t pieces) {
  if (pieces == 0) return;
  SPILLWAY_CHECK(pieces <= pieces_.size());
  const Event used = compute_.record();
  for (size_t i = 0; i < pieces; ++i) {
    pieces_.pop_front();
    finished_.push_back(used);
  }
}

Event DeviceRing::write_back(std::byte* to, std::span<const ByteRange> changes) {
  SPILLWAY_CHECK(!pieces_.empty());
  const std::byte* memory = pieces_.front();
  finish(1);
  if (changes.empty()) return finished_.back();
  down_->wait(finished_.back());
  for (const ByteRange& change : changes) {
    down_->copy(to + change.from, memory + change.from, change.to - change.from);
    d2h_bytes_ += change.to - change.from;
  }
  return finished_.back() = down_->record();
}

Event DeviceRing::write_back(std::span<const Part> changes) {
  SPILLWAY_CHECK(!pieces_.empty());
  const std::byte* memory = pieces_.front();
  finish(1);
  if (changes.empty()) return finished_.back();
  down_->wait(finished_.back());
  for (const Part& part : changes) {
    down_->copy(part.host, memory + part.at, part.bytes);
    d2h_bytes_ += part.bytes;
  }
  return finished_.back() = down_->record();
}

Status DeviceRing::sync() {
  const Status up = up_->record().wait();
  const Status down = down_->record().wait();
  return up.ok() ? down : up;
}

void DeviceRing::clear() {
  (void)sync().ok();
  (void)compute_.record().wait().ok();
  pieces_.clear();
  finished_.clear();
  ring_.clear();
}

}  // namespace spillway
