// A small engine on the CPU whose KV cache lies in memory and in a scratch file in memory, for
// tests of the scheduler: sizes in bytes, transfers by a FakeIo.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "scheduler/block_scheduler.h"
#include "scheduler/drafter.h"
#include "tests/support/fake_io.h"

namespace spillway::test {

struct EngineOnTiers {
  struct KvBytes {
    uint64_t memory = 0, disk = 0, aside = 0, staging = 0;
  };

  EngineOnTiers(ModelShape of, const SchedulerOptions& options, const KvBytes& kv, FakeIo& io)
      : shape(std::move(of)), scheduling(options), transfers(io, nullptr) {
    weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
    EngineOptions engine_options;
    engine_options.sweep_tokens_max = sweep_tokens_max(shape, scheduling);
    if (options.draft_tokens > 0) {
      engine_options.draft_rows_max = std::max(kDraftRows, options.draft_tokens + 1);
    }
    engine_options.kv_bytes = kv.memory;
    engine_options.kv_disk_bytes = kv.disk;
    engine_options.kv_staging_bytes = kv.staging;
    engine_options.kv_aside_bytes = kv.aside;
    EngineScratch scratch;
    scratch.transfers = &transfers;
    if (kv.disk + kv.aside > 0) scratch.kv = memory_file(kv.disk + kv.aside);
    engine = Engine::open(*device, *weights, engine_options, std::move(scratch)).value();
  }

  // From then on the engine is the scheduler's.
  void start() { scheduler = start_scheduler(std::move(engine), scheduling); }

  ModelShape shape;
  SchedulerOptions scheduling;
  std::unique_ptr<Device> device = open_cpu_device(1).value();
  TransferQueue transfers;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
};

}  // namespace spillway::test
