// A model on several ranks of this process that share every layer: rank 0 opens a Runtime whose
// scheduler has the others work beside it, each on a thread with its own device, weights, KV cache
// and transfers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/runtime.h"

namespace spillway {

using FileId = decltype(ModelFileTable::file_id);

// The packed file of a model, whether it is in the cache.
struct CachedFile {
  bool cached = false;
  FileId id{};
};

// The ranks of this process: several that share every layer that the process has, or one alone.
// Steps are taken once, in this order; errors of another rank than 0 name it.
class RanksHere {
 public:
  // Opens the model for each rank. Errors as open_model(), and of rank_flags(). `damaged`: as
  // there.
  static Result<RanksHere> open(const std::string& model, const EngineFlags& flags,
                                const RuntimeOptions& options, std::optional<FileId> damaged = {});
  RanksHere(RanksHere&&) noexcept;
  ~RanksHere();  // Ends the others, unless somebody has them.

  const std::vector<OpenedModel>& opened() const { return opened_; }

  // The block and the prompt tokens of a sweep that the plans are to have.
  void go_by(int64_t block, int64_t prefill_tokens);
  // `planner` makes rank 0's plan, which has the most to hold, and the others go by it; empty: the
  // default heuristic does, by `profile` of one of the ranks, as machine_of(). So many processes
  // divide the disk's free space.
  Status make_plans(const PlanWishes& wishes, const Runtime::Planner& planner = {},
                    const HardwareProfile* profile = nullptr, uint64_t disk_parts = 1);
  const std::vector<Plan>& plans() const { return plans_; }

  // From here on the other ranks load, and rank 0 does in open_first(). Models and plans move on.
  Status start_others();
  Result<std::unique_ptr<Runtime>> open_first(RuntimeOptions options);

  // Waits until the others have loaded. Null, and nothing: there are none. `ranks` keeps them, and
  // ends before rank 0's runtime.
  struct Others {
    std::unique_ptr<OtherRanks> ranks;
    std::vector<KvCacheOptions> caches;
    std::vector<std::string> plan_lines;
  };
  Result<Others> others();

 private:
  class Followers;
  RanksHere();

  std::vector<OpenedModel> opened_;
  PlanWishes wishes_;
  std::vector<Plan> plans_;
  std::shared_ptr<RankGroup> group_;      // Rank 0's; null: it is alone
  std::shared_ptr<Followers> followers_;  // Null: there are none yet
};

// The flags of each rank: its GPU, or its share of the threads. Those of host memory and disk,
// which all ranks take from together, stay as they are: make_plan() divides them. kInvalidArgument:
// there are fewer processors than ranks.
Result<std::vector<EngineFlags>> rank_flags(const EngineFlags& flags);

// As Runtime::open(), for flags with several ranks. `damaged`: as open_model()'s; `cached`: set
// once the model is open. The runtime's end ends the others.
Result<std::unique_ptr<Runtime>> open_ranks(const std::string& model, const EngineFlags& flags,
                                            RuntimeOptions options, const Runtime::Planner& planner,
                                            std::optional<FileId> damaged, CachedFile* cached);

}  // namespace spillway
