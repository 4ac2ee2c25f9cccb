// Host memory of the accepted requests: their prompts, and their answers until they are sent. Each
// reserves its maximum at once, so that together they never hold more than the plan gave them
// (memory_budget.h). Any thread. Outlives its leases.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "server/api/completion.h"
#include "server/http/pace.h"

namespace spillway {

// The most bytes that a call's prompts, tokens, scores and their JSON hold at once.
uint64_t answer_bytes(const CompletionCall& call);

// The error for a request that alone may need more than the limit for all.
ApiError answer_too_large(uint64_t bytes, uint64_t most);

class AnswerMemory {
 public:
  explicit AnswerMemory(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Reserves the bytes until the last copy of the pointer is gone. An error: they are not free now
  // (429) or exceed the limit (400, which names the flag).
  ApiResult<std::shared_ptr<void>> take(uint64_t bytes);

  uint64_t held() const { return held_->bytes; }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  const uint64_t bytes_max_;
  struct Held {
    std::atomic<uint64_t> bytes{0};
    Pace pace;  // In bytes
  };
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

}  // namespace spillway
