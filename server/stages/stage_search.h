// The search for a plan of all pipeline stages: what each says of its machine, and what rank 0
// finds by it, which has the same flags and the same model. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/byte_message.h"
#include "scheduler/planning/stage_plans.h"
#include "server/runtime.h"
#include "server/stages/roll_call.h"

namespace spillway {

// A stage's machine as the search sees it.
struct StageMachineSeen {
  // Of one of its ranks; none: `spillway profile` has not run there with its number of threads.
  std::optional<HardwareProfile> hardware;
  std::string profile_command;  // That would measure it
  uint64_t host_bytes = 0;      // Budgets: host memory for all its ranks, and of a GPU
  uint64_t device_bytes = 0;
};

// `first`: the first rank of the stage, whose process has these flags and is one of so many that
// divide the disk.
StageMachineSeen see_stage_machine(const OpenedModel& first, const EngineFlags& flags,
                                   const RankSelf& process, uint64_t disk_parts);
void write(const StageMachineSeen& seen, ByteWriter* writer);
// A profile that cannot be read is none.
StageMachineSeen read_stage_machine(ByteReader* reader);

struct StageQuestion {
  const OpenedModel* first = nullptr;  // Of rank 0
  std::span<const StageMachineSeen> machines;
  std::span<const LayerRange> layers;
  bool one_host = false;  // All stages are on one
  PlanWishes wishes;
  std::vector<RequestGroup> workload;
};

struct StageAnswer {
  StagedPlan plan;
  std::string line;  // Says it
};

// The block and the prompt tokens of a sweep, of plan.plans[0], with which all stages together are
// predicted to be fastest; those that the flags name stay. Errors as find_stage_plan(), and
// kNotFound: no profile, whose message says of which rank. `names`: of the ranks.
Result<StageAnswer> search_stages(const StageQuestion& question,
                                  std::span<const std::string> names);

}  // namespace spillway
