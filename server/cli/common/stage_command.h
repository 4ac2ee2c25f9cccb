// The beginning of a command that runs on several ranks (--stages): serve, batch and bench.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "scheduler/planning/engine_flags.h"
#include "server/stages/staged_runtime.h"

namespace spillway {

// With --stages: joins the others, and sets `rank` where this process leads them. A status: the
// command is over, because this process has followed to the end, or because of an error, which was
// reported. Call it before anything that only one process may do. Blocks.
std::optional<int> start_stages(const char* command, const std::string& model,
                                const EngineFlags& flags, std::shared_ptr<StageRank>* rank);

}  // namespace spillway
