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

// The flags of each rank: its GPU, or its share of the threads. Those of host memory and disk,
// which all ranks take from together, stay as they are: make_plan() divides them. kInvalidArgument:
// there are fewer processors than ranks.
Result<std::vector<EngineFlags>> rank_flags(const EngineFlags& flags);

// As Runtime::open(), for flags with several ranks; the planner makes rank 0's plan, which has the
// most to hold, and the others go by it. `damaged`: as open_model()'s; `cached`: set once the model
// is open. Errors of another rank than 0 name it. The runtime's end
// ends the others.
Result<std::unique_ptr<Runtime>> open_ranks(const std::string& model, const EngineFlags& flags,
                                            RuntimeOptions options, const Runtime::Planner& planner,
                                            std::optional<FileId> damaged, CachedFile* cached);

}  // namespace spillway
