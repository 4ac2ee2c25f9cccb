// Remembers the beginnings of the last prompts by hashes of their KV blocks, so that memory is
// given to a beginning only when a second prompt has it. A false match costs memory that nobody
// shares, and nothing else. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>

#include "scheduler/request.h"

namespace spillway {

class SeenBeginnings {
 public:
  // How many of the first `blocks` KV blocks of a prompt an earlier one with the same salt began
  // with.
  int64_t seen(const CacheSalt& salt, std::span<const int32_t> prompt, int64_t blocks) const;
  // Notes the first `blocks` KV blocks of a prompt.
  void note(const CacheSalt& salt, std::span<const int32_t> prompt, int64_t blocks);

 private:
  bool has(uint64_t hash) const { return newer_.contains(hash) || older_.contains(hash); }

  // Of prompts: the newer half is full when the older is forgotten.
  std::unordered_set<uint64_t> newer_, older_;
};

}  // namespace spillway
