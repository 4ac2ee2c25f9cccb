// KvDraw: the numbers that the KV rule random draws for positions. Each is a hash of seed, layer,
// KV head and position: nothing is stored, and the choice depends on no other sequence, whatever
// order things are computed in. Pure; any thread, and device code.
#pragma once

#include <cstdint>

namespace spillway {

class KvDraw {
 public:
  // The part of the hash that all KV heads of a sequence's layer share. `first_head`: the number in
  // the model of what the constructor calls KV head 0.
  static constexpr uint64_t key_of(uint64_t seed, int64_t layer, int64_t first_head = 0) {
    return mixed(mixed(seed) + static_cast<uint64_t>(layer)) +
           kGolden * static_cast<uint64_t>(first_head);
  }

  constexpr KvDraw() = default;
  constexpr KvDraw(uint64_t key, int64_t kv_head)
      : key_(mixed(key + kGolden * (static_cast<uint64_t>(kv_head) + 1))) {}

  // A position with a higher rank stays rather than one with a lower. Positions of a sequence have
  // different ranks (but for the highest two), since each step of the hash is one to one.
  constexpr uint32_t rank(int64_t position) const {
    uint32_t x = mixed(static_cast<uint32_t>(position) + static_cast<uint32_t>(key_));
    x = mixed(x ^ static_cast<uint32_t>(key_ >> 32));
    return x < kProtected ? x : kProtected - 1;
  }
  static constexpr uint32_t kProtected = 0xffffffffu;  // Above any rank

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

  // The finaliser of splitmix64, and that of MurmurHash3 for 32 bits.
  static constexpr uint64_t mixed(uint64_t x) {
    x += kGolden;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  static constexpr uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }

  uint64_t key_ = 0;
};

}  // namespace spillway
