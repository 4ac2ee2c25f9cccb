// Messages of ranks: any bytes are a sweep, a request of logits or an error, and a message can be
// made of what they are.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "scheduler/stages/stage_messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  // As mail leaves it: in memory that a vector has allocated.
  const auto* from = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> message(from, from + size);
  const Result<StageMessage> kind = kind_of(message);
  if (const Result<LogitsRequest> logits = decode_logits(message); logits.ok()) {
    SPILLWAY_CHECK(kind.ok() && kind.value() == StageMessage::kLogits);
    SPILLWAY_CHECK(logits_message(logits.value()) == message);
  }
  const Result<ReceivedSweep> found = decode_sweep(message);
  if (!found.ok()) return 0;
  SPILLWAY_CHECK(kind.ok() && kind.value() == StageMessage::kSweep);
  const StageSweep& sweep = found->sweep;
  uint64_t tokens = 0;
  for (const StageItem& item : sweep.items) tokens += static_cast<uint64_t>(item.tokens);
  SPILLWAY_CHECK(tokens == sweep.tokens.size());
  for (const StageFailure& failure : sweep.failures) {
    SPILLWAY_CHECK(failure.item < sweep.items.size());
  }
  std::vector<std::byte> again = begin_sweep_message(found->rows.size());
  const std::span<float> rows = rows_of(&again);
  std::copy(found->rows.begin(), found->rows.end(), rows.begin());
  finish_sweep_message(sweep, &again);
  const Result<ReceivedSweep> read = decode_sweep(again);
  SPILLWAY_CHECK(read.ok() && read->sweep.tokens == sweep.tokens);
  SPILLWAY_CHECK(read->sweep.status.code() == sweep.status.code());
  return 0;
}
