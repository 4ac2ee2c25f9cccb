// What one API key may have of the server. Plain values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spillway {

struct KeyLimits {
  std::string name;  // In messages and logs, in place of the key; empty: it has none
  // The range of `priority`; none: the server's (--priority). A request that names none has 0, or
  // what of the range is nearest to it.
  std::optional<int32_t> priority_min, priority_max;
  // 0: no limit of its own.
  int64_t slots = 0;              // Sequences waiting and running at once
  int64_t tokens_per_minute = 0;  // Of prompts and answers
  int64_t connections = 0;        // That have sent the key and are open
};

}  // namespace spillway
