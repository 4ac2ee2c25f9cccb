#include "scheduler/stages/joint_sweep.h"

#include <utility>

namespace spillway {

Result<std::unique_ptr<KvSequence>> reserve_on_all(Engine& engine, OtherRanks* others, int64_t rows,
                                                   const KvBudget& budget, const KvChunks& chunks,
                                                   int64_t rows_now,
                                                   std::span<const KvPages* const> beginning,
                                                   const KvVacant& vacant) {
  auto kv = engine.reserve(rows, budget, chunks, rows_now, beginning, vacant);
  if (!kv.ok() || others == nullptr) return kv;
  Status there;
  try {
    there = others->reserve(kv->get(), rows, budget, chunks);
  } catch (...) {
    engine.release(std::move(kv).value());
    throw;
  }
  if (there.ok()) return kv;
  engine.release(std::move(kv).value());
  return there;
}

void release_on_all(Engine& engine, OtherRanks* others, std::unique_ptr<KvSequence> sequence) {
  if (others != nullptr) others->release(sequence.get());
  engine.release(std::move(sequence));
}

Status finish_sweep(Engine& engine, OtherRanks* others, std::span<const SweepItem> items,
                    LogitsSink& sink) {
  if (others == nullptr) return engine.run(items, sink);
  SPILLWAY_ASSIGN_OR_RETURN(const OtherRanks::Rows rows, others->finish());
  const StageRows with{.in = rows.hidden, .out = {}, .peers = rows.peers};
  // Whatever goes wrong from here on, settle() is told: ranks may wait in the sweep for this one.
  const auto run = [&] {
    for (const auto& [item, status] : rows.failures) sink.on_failure(item, status);
    return engine.run(items, sink, with);
  };
  SPILLWAY_ASSIGN_OR_RETURN(const ItemFailures late, others->settle(try_sweep(run)));
  for (const auto& [item, status] : late) sink.on_failure(item, status);
  return {};
}

}  // namespace spillway
