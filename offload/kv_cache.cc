#include "offload/kv_cache.h"

#include <iterator>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/units.h"

namespace spillway {

Result<std::unique_ptr<KvCache>> KvCache::open(Device& device, const KvLayout& layout,
                                               int64_t layers, uint64_t bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, bytes));
  return std::unique_ptr<KvCache>(new KvCache(std::move(buffer), layout, layers));
}

KvCache::KvCache(Buffer buffer, const KvLayout& layout, int64_t layers)
    : buffer_(std::move(buffer)), layout_(layout), layers_(layers) {
  if (buffer_.bytes() > 0) free_.emplace(0, buffer_.bytes());
}

uint64_t KvCache::sequence_bytes(int64_t rows) const {
  return layout_.sequence_bytes(rows) * static_cast<uint64_t>(layers_);
}

Result<KvReservation> KvCache::reserve(int64_t rows) {
  SPILLWAY_CHECK(rows > 0);
  const uint64_t bytes = sequence_bytes(rows);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < bytes) continue;
    free_.erase(it);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    reserved_ += bytes;
    return KvReservation{offset, bytes, layout_.sequence_bytes(rows)};
  }
  return Status(Code::kCapacity, "the KV cache has no room for " + std::to_string(rows) +
                                     " positions (" + format_bytes(bytes) + ") now; " +
                                     format_bytes(total_bytes() - reserved_) + " of " +
                                     format_bytes(total_bytes()) + " are free");
}

void KvCache::release(const KvReservation& reservation) {
  SPILLWAY_CHECK(reservation.bytes > 0 && reservation.bytes <= reserved_);
  reserved_ -= reservation.bytes;
  auto [it, fresh] = free_.emplace(reservation.offset, reservation.bytes);
  SPILLWAY_CHECK(fresh);
  if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (auto before = std::prev(it); before->first + before->second == it->first) {
    before->second += it->second;
    free_.erase(it);
  }
}

std::byte* KvCache::layer(const KvReservation& reservation, int64_t layer) const {
  SPILLWAY_CHECK(layer >= 0 && layer < layers_);
  return buffer_.data() + reservation.offset +
         static_cast<uint64_t>(layer) * reservation.layer_bytes;
}

void KvCache::verify() const {
  uint64_t free = 0, end = 0;
  bool first = true;
  for (const auto& [offset, bytes] : free_) {
    SPILLWAY_CHECK(first || offset > end);  // Touching neighbours would have been merged.
    end = offset + bytes;
    free += bytes;
    first = false;
  }
  SPILLWAY_CHECK(end <= total_bytes() && free + reserved_ == total_bytes());
}

}  // namespace spillway
