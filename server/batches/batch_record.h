// A batch of /v1/batches: what is known of it, its states, and both as JSON. Values, any thread.
//
//   validating -> failed
//   validating -> in_progress -> finalizing -> completed
//   in_progress, finalizing -> expired
//   validating, in_progress, finalizing -> cancelling -> cancelled
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

enum class BatchState : uint8_t {
  kValidating,
  kInProgress,
  kFinalizing,
  kCompleted,
  kFailed,
  kExpired,
  kCancelling,
  kCancelled,
};
constexpr size_t kBatchStates = 8;

std::string_view batch_state_name(BatchState state);  // "in_progress"
bool is_final(BatchState state);                      // Nothing follows
// Whether a batch may go from one state to the other.
bool may_follow(BatchState from, BatchState to);

// What is wrong with an input file. `line` 0: with the file itself.
struct BatchFault {
  std::string code;
  std::string message;
  std::string param;  // Empty: null
  int64_t line = 0;
};
constexpr size_t kBatchFaultsMax = 100;

struct BatchRecord {
  std::string id;     // "batch_" and 24 hex digits
  std::string owner;  // Whose it is; others do not see it
  std::string endpoint;
  std::string input_file;
  std::string window;  // As asked for: "24h"
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<int64_t> output_seconds;  // Its output files expire after so long

  BatchState state = BatchState::kValidating;
  // Unix seconds at which it entered each state; 0: it did not.
  std::array<int64_t, kBatchStates> entered{};
  int64_t expires_at = 0;  // 0: never
  std::string detail;      // Why it does not go on just now; empty: it does

  std::string model;                // As the API shows it
  std::vector<std::string> models;  // All names that its lines use
  std::string identity;             // Of the model that it was looked through for, or runs on
  std::vector<BatchFault> faults;   // Why it failed
  std::string output_file;          // Empty: none
  std::string error_file;
  int64_t total = 0, completed = 0, failed = 0;  // Lines
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t cached_tokens = 0;  // Of the prompts', from the prefix cache; none of a run that crashed

  // Goes to the next state, not before it entered any other one. REQUIRES: may_follow().
  void enter(BatchState next, int64_t now);
};

// The object of the API.
nlohmann::ordered_json batch_object(const BatchRecord& record);

// For the table of batches.
std::string batch_record_text(const BatchRecord& record);
// kCorruption: it is not what batch_record_text() wrote.
Result<BatchRecord> read_batch_record(std::string_view text);

}  // namespace spillway
