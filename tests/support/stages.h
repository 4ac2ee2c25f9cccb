// Pipeline stages on threads of one process: rank 0 schedules, the others follow, over the mail of
// threads. Each may be several ranks that share its layers.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/rank_shape.h"
#include "kernels/ranks/thread_mail.h"
#include "kernels/ranks/thread_ranks.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/stages/layer_ranks.h"
#include "scheduler/stages/stage_ring.h"
#include "scheduler/stages/stage_worker.h"
#include "scheduler/stages/stages_of_ranks.h"
#include "tests/support/fake_io.h"

namespace spillway::test {

// Prompts of 3 to 31 tokens; those of odd numbers are drawn for.
inline Request numbered_request(int number, int32_t tokens) {
  Request request;
  for (int i = 0; i < 3 + 7 * (number % 5); ++i)
    request.prompt.push_back(3 + (number * 31 + i * 7) % 90);
  request.max_tokens = tokens;
  request.ignore_eos = true;
  request.sampling.temperature = number % 2 == 0 ? 0 : 0.8F;
  request.sampling.seed = static_cast<uint64_t>(number);
  return request;
}

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

// One pipeline stage: the engines of the ranks that share its layers, the first of which leads.
class StageOfRanks {
 public:
  StageOfRanks(const ModelShape& shape, LayerRange range, int64_t sweep_tokens,
               const StageTiers& tiers, int64_t ranks, const StageTiers& followers_tiers)
      : groups_(thread_ranks(static_cast<int>(ranks))),
        mail_(thread_mail(static_cast<int>(ranks))) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      engines_.push_back(std::make_unique<StageEngine>(
          rank_shape(shape, rank, ranks).value(), range, sweep_tokens,
          rank == 0 ? tiers : followers_tiers,
          ranks == 1 ? nullptr : groups_[static_cast<size_t>(rank)].get()));
      if (rank > 0) followers_caches_.push_back(engines_.back()->engine->kv().options());
    }
  }
  ~StageOfRanks() {
    for (std::thread& follower : followers_) follower.join();
  }

  StageEngine& engine(size_t rank) { return *engines_[rank]; }

  // Of all its ranks.
  std::vector<KvCacheOptions> caches() const {
    std::vector<KvCacheOptions> caches = {engines_[0]->engine->kv().options()};
    caches.insert(caches.end(), followers_caches_.begin(), followers_caches_.end());
    return caches;
  }

  // The followers, as the leader has them; null: there are none. Their end ends these.
  std::unique_ptr<OtherRanks> start_followers() {
    if (engines_.size() == 1) return nullptr;
    for (size_t rank = 1; rank < engines_.size(); ++rank) {
      followers_.emplace_back([this, rank] {
        if (!run_stage(*mail_[rank], *engines_[rank]->engine).ok()) followed_ = false;
      });
    }
    return layer_ranks(*mail_[0], *groups_[0], followers_caches_).value();
  }

  // False: one had an error of its own.
  bool followed() const { return followed_; }

 private:
  std::vector<std::unique_ptr<RankGroup>> groups_;
  std::vector<std::unique_ptr<RankMail>> mail_;
  std::vector<std::unique_ptr<StageEngine>> engines_;
  std::vector<KvCacheOptions> followers_caches_;
  std::vector<std::thread> followers_;
  std::atomic<bool> followed_ = true;
};

// A scheduler over `cuts.size() + 1` stages, whose layers begin at 0 and at the cuts; without cuts
// it is one over a whole model. Each is so many ranks.
class Stages {
 public:
  Stages(const ModelShape& shape, std::vector<int64_t> cuts, const SchedulerOptions& options,
         const StageTiers& tiers, int64_t ranks = 1)
      : Stages(shape, std::move(cuts), options, tiers, ranks, tiers) {}
  Stages(const ModelShape& shape, std::vector<int64_t> cuts, const SchedulerOptions& options,
         const StageTiers& tiers, int64_t ranks, const StageTiers& followers_tiers) {
    cuts.push_back(shape.layers);
    mail_ = thread_mail(static_cast<int>(cuts.size()));
    const int64_t tokens = sweep_tokens_max(shape, options);
    for (int64_t first = 0; const int64_t end : cuts) {
      stages_.push_back(std::make_unique<StageOfRanks>(shape, LayerRange{first, end - first},
                                                       tokens, tiers, ranks, followers_tiers));
      first = end;
    }
    std::vector<KvCacheOptions> caches;
    for (size_t i = 0; i + 1 < stages_.size(); ++i) {
      for (const KvCacheOptions& cache : stages_[i]->caches()) caches.push_back(cache);
    }
    for (size_t i = 0; i + 1 < stages_.size(); ++i) {
      leaders_.emplace_back([this, i] {
        const std::unique_ptr<OtherRanks> followers = stages_[i]->start_followers();
        if (!run_stage(*mail_[i + 1], *stages_[i]->engine(0).engine, followers.get()).ok()) {
          followed_ = false;
        }
      });
    }
    std::unique_ptr<OtherRanks> others = stages_.back()->start_followers();
    if (!caches.empty()) {
      auto ring = stage_ring(*mail_[0], shape.hidden, caches, static_cast<int>(ranks)).value();
      others =
          others == nullptr ? std::move(ring) : stages_of_ranks(std::move(ring), std::move(others));
    }
    scheduler_ = start_scheduler(std::move(stages_.back()->engine(0).engine), options, {},
                                 std::move(others));
  }
  ~Stages() { end(); }

  Scheduler& scheduler() { return *scheduler_; }
  // Of a stage's rank, in the order of the layers.
  FakeIo& io(size_t stage, size_t rank) { return stages_[stage]->engine(rank).io; }

  // Ends all ranks; false: a follower had an error.
  bool end() {
    scheduler_.reset();
    for (std::thread& leader : leaders_) leader.join();
    leaders_.clear();
    for (const auto& stage : stages_) followed_ = followed_ && stage->followed();
    return followed_;
  }

 private:
  std::vector<std::unique_ptr<RankMail>> mail_;
  std::vector<std::unique_ptr<StageOfRanks>> stages_;
  std::vector<std::thread> leaders_;
  std::atomic<bool> followed_ = true;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace spillway::test
