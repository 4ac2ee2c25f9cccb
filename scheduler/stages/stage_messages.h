// What stages say to each other, as bytes. All ranks are the same program on machines of one byte
// order (they compare versions first), so numbers go as they lie in memory; a message that ends too
// early or contradicts itself is an error all the same. Values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/kv_layout.h"
#include "offload/kv_layer.h"

namespace spillway {

// The first number of every message.
enum class StageMessage : uint32_t {
  kSetup,  // Before the engines are opened: server/stages/
  kSweep,
  kEnd,     // Nothing more will come.
  kLogits,  // Between ranks that share every layer
};

Result<StageMessage> kind_of(std::span<const std::byte> message);
std::vector<std::byte> end_message();

// A change of the caches, before a sweep. `id` names a sequence on all stages.
struct StageKvChange {
  uint64_t id = 0;
  bool release = false;  // Else: reserves
  int64_t rows = 0;      // Of this and what follows: as in KvCache::reserve()
  KvBudget budget;
  int64_t chunk_prompt = 0, chunk_most = 0;
};

// Which tokens of an item have logits. Ranks that share layers run the end of the last one for
// these alone.
enum class StageLogits : uint64_t { kNone, kLast, kAll };

// Of a SweepItem what ranks without a head need.
struct StageItem {
  uint64_t id = 0;
  int64_t position = 0, prompt = 0, tokens = 0;
  StageLogits logits = StageLogits::kNone;
};

struct StageFailure {
  size_t item = 0;
  Status status;
};

// A sweep on its way from stage to stage.
struct StageSweep {
  uint64_t number = 0;  // Counts sweeps
  Status status;        // Not OK: an earlier stage's sweep failed, and there are no rows.
  // Of a rank that shares every layer: whether this is its last word on the sweep, or what it says
  // when its layers are queued.
  bool ended = false;
  std::vector<StageFailure> failures;
  std::vector<StageKvChange> changes;
  std::vector<StageItem> items;
  std::vector<int32_t> tokens;  // Of all items
};

// What the first of such ranks asks the others: logits of so many rows. 0: there are no more in the
// sweep; negative: it has failed.
struct LogitsRequest {
  uint64_t sweep = 0;
  int64_t rows = 0;
};
std::vector<std::byte> logits_message(const LogitsRequest& request);
// kCorruption: it is no such message.
Result<LogitsRequest> decode_logits(std::span<const std::byte> message);

// A message of a sweep is begun with room for so many numbers of rows, which are written where they
// lie, and finished with all else.
std::vector<std::byte> begin_sweep_message(size_t rows);
std::span<float> rows_of(std::vector<std::byte>* message);
void finish_sweep_message(const StageSweep& sweep, std::vector<std::byte>* message);

struct ReceivedSweep {
  StageSweep sweep;
  std::span<const float> rows;  // In the message
};
// kCorruption: it is no message of a sweep. `message` outlives the result.
Result<ReceivedSweep> decode_sweep(std::span<const std::byte> message);

}  // namespace spillway
