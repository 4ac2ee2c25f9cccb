// The key/value memory of all sequences: one region, out of which each sequence gets a fixed
// reservation for the most rows it can ever have (DESIGN section 4: promised at admission, never
// renegotiated). Inside a reservation the layers follow each other, each as kernels/kv_layout.h
// says.
//
// Thread rule: the engine thread. Invariant: free + reserved bytes == total; no two reservations
// overlap (verify()).
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"

namespace spillway {

// A sequence's place in the cache. Default: none.
struct KvReservation {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t layer_bytes = 0;
};

class KvCache {
 public:
  // Takes `bytes` of device memory; pages are touched when sequences first use them.
  static Result<std::unique_ptr<KvCache>> open(Device& device, const KvLayout& layout,
                                               int64_t layers, uint64_t bytes);

  const KvLayout& layout() const { return layout_; }
  uint64_t total_bytes() const { return buffer_.bytes(); }
  uint64_t reserved_bytes() const { return reserved_; }

  // Bytes that `rows` cached positions take over all layers.
  uint64_t sequence_bytes(int64_t rows) const;

  // Room for `rows` positions: the first free stretch that is large enough. kCapacity: none now.
  Result<KvReservation> reserve(int64_t rows);
  void release(const KvReservation& reservation);

  // A sequence's cache of one layer.
  std::byte* layer(const KvReservation& reservation, int64_t layer) const;

  void verify() const;

 private:
  KvCache(Buffer buffer, const KvLayout& layout, int64_t layers);

  Buffer buffer_;
  KvLayout layout_;
  int64_t layers_;
  uint64_t reserved_ = 0;
  std::map<uint64_t, uint64_t> free_;  // Offset to bytes, neighbours merged.
};

}  // namespace spillway
