// What an engine does together with the OtherRanks that hold the model with it, or alone where
// there are none (null). Engine thread.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "scheduler/engine/engine.h"
#include "scheduler/stages/other_ranks.h"

namespace spillway {

// Running out of memory in a sweep ends its sequences, not the process.
template <class Run>
Status try_sweep(const Run& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return {Code::kCapacity, std::string("the sweep failed: ") + error.what()};
  }
}

// Engine::reserve() with room on all ranks, or on none. kCapacity: one has none.
Result<std::unique_ptr<KvSequence>> reserve_on_all(Engine& engine, OtherRanks* others, int64_t rows,
                                                   const KvBudget& budget,
                                                   const KvChunks& chunks = {},
                                                   int64_t rows_now = 0,
                                                   std::span<const KvPages* const> beginning = {},
                                                   const KvVacant& vacant = {});

// REQUIRES: no sweep with it is under way.
void release_on_all(Engine& engine, OtherRanks* others, std::unique_ptr<KvSequence> sequence);

// Engine::run() of the oldest sweep that `others` have been given by start(), with what failed on
// them told to `sink`.
Status finish_sweep(Engine& engine, OtherRanks* others, std::span<const SweepItem> items,
                    LogitsSink& sink);

}  // namespace spillway
