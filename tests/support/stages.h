// Pipeline stages on threads of one process: rank 0 schedules, the others follow, over the mail of
// threads.
#pragma once

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/ranks/thread_mail.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/stages/stage_ring.h"
#include "scheduler/stages/stage_worker.h"
#include "tests/support/fake_io.h"

namespace spillway::test {

// How the stages hold their part of a model.
struct StageTiers {
  bool on_disk = false;     // All weights, half of the KV cache and of the activations
  bool kv_on_disk = false;  // All of the KV cache, and nothing else
  uint64_t kv_bytes = 0;    // Of a layer
  Format format = Format::kF32;
};

// One rank's weights and engine.
struct StageEngine {
  StageEngine(const ModelShape& shape, LayerRange range, int64_t sweep_tokens,
              const StageTiers& tiers, RankGroup* ranks = nullptr) {
    constexpr uint64_t kFileBytes = uint64_t{8} << 20;
    WeightStoreOptions stored;
    EngineScratch scratch;
    options.ranks = ranks;
    stored.layers = options.layers = range;
    options.sweep_tokens_max = sweep_tokens;
    options.micro_batch_sequences = 2;
    options.kv_bytes = tiers.kv_bytes * static_cast<uint64_t>(range.count);
    if (tiers.on_disk) {
      const ModelFileTable table =
          plan_model_file(shape, tiers.format, device->matrix_layout(tiers.format));
      stored.placement = place_weights(table, table.weight_bytes(), 0, range);
      stored.transfers = &transfers;
      stored.scratch = memory_file(kFileBytes);
      options.activations_disk_share = 0.5;
      scratch.activations = memory_file(kFileBytes);
    }
    if (tiers.on_disk || tiers.kv_on_disk) {
      options.kv_bytes = tiers.kv_on_disk ? 0 : options.kv_bytes / 2;
      options.kv_disk_bytes = kFileBytes;
      options.kv_staging_bytes = 3 * kv_layout(shape, Format::kF32).sequence_bytes(128);
      scratch.transfers = &transfers;
      scratch.kv = memory_file(kFileBytes);
    }
    weights = WeightStore::dummy(*device, shape, tiers.format, 3, std::move(stored)).value();
    engine = Engine::open(*device, *weights, options, std::move(scratch)).value();
  }

  EngineOptions options;
  std::unique_ptr<Device> device = open_cpu_device(1).value();
  FakeIo io{{.seed = 1}};
  TransferQueue transfers{io, nullptr};
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<Engine> engine;
};

// A scheduler over `cuts.size() + 1` stages, whose layers begin at 0 and at the cuts; without cuts
// it is one over a whole model.
class Stages {
 public:
  Stages(const ModelShape& shape, std::vector<int64_t> cuts, const SchedulerOptions& options,
         const StageTiers& tiers) {
    cuts.push_back(shape.layers);
    mail_ = thread_mail(static_cast<int>(cuts.size()));
    const int64_t tokens = sweep_tokens_max(shape, options);
    for (int64_t first = 0; const int64_t end : cuts) {
      engines_.push_back(
          std::make_unique<StageEngine>(shape, LayerRange{first, end - first}, tokens, tiers));
      first = end;
    }
    std::vector<KvCacheOptions> caches;
    for (size_t i = 0; i + 1 < engines_.size(); ++i) {
      caches.push_back(engines_[i]->engine->kv().options());
      followers_.emplace_back([this, i] {
        followed_ = followed_ && run_stage(*mail_[i + 1], *engines_[i]->engine).ok();
      });
    }
    std::unique_ptr<OtherRanks> others;
    if (!caches.empty()) others = stage_ring(*mail_[0], shape.hidden, std::move(caches)).value();
    scheduler_ =
        start_scheduler(std::move(engines_.back()->engine), options, {}, std::move(others));
  }
  ~Stages() { end(); }

  Scheduler& scheduler() { return *scheduler_; }

  // Ends all ranks; false: a follower had an error.
  bool end() {
    scheduler_.reset();
    for (std::thread& follower : followers_) follower.join();
    followers_.clear();
    return followed_;
  }

 private:
  std::vector<std::unique_ptr<RankMail>> mail_;
  std::vector<std::unique_ptr<StageEngine>> engines_;
  std::vector<std::thread> followers_;
  std::atomic<bool> followed_ = true;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace spillway::test
