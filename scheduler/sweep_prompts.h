// The prompt tokens of a sweep while it is put together: how long the chunk of each prompt is that
// goes through in chunks, beside whole prompts that join. One sweep's; engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "policy/batching.h"
#include "scheduler/sequence.h"

namespace spillway {

class SweepPrompts {
 public:
  // Sets the chunks of the prompts among `running` that have begun. `owed`: of earlier sweeps
  // (owed_after()). All outlive the object.
  SweepPrompts(std::span<const std::unique_ptr<Sequence>> running, int64_t owed,
               const SweepLimits& limits);

  // The sweep so far, with so many sequences that reserve so many bytes.
  SweepContents contents(int64_t sequences, uint64_t kv_bytes) const;

  // A sequence joins that was admitted: whole or in chunks, as requests_admitted() said.
  void join(Sequence& next, bool in_chunks);

  // Sets the chunk of the prompt that goes on after this sweep; returns what the next sweep owes.
  int64_t finish();

 private:
  const SweepLimits& limits_;
  SweepContents sweep_;
  Sequence* chunked_ = nullptr;  // The one whose prompt goes on after this sweep
};

}  // namespace spillway
