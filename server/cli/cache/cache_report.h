// The report of `spillway cache`, as text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "offload/cache_contents.h"

namespace spillway {

struct CacheReport {
  CacheContents contents;              // Before anything was removed
  std::optional<uint64_t> free_bytes;  // On the folder's disk, likewise; none: not known
  int64_t now_ns = 0;
  std::optional<PruneResult> pruned;  // None: listed only
  bool dry_run = false;
};

std::string text_of(const CacheReport& report);
std::string json_of(const CacheReport& report);

}  // namespace spillway
