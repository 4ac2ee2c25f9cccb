// What makes two runs of a batch the same: the input, the model and all settings that change
// answers. `spillway batch` and `spillway work` name their runs alike by it. Pure, any thread.
#pragma once

#include <optional>
#include <string>

#include "scheduler/journal.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

// The settings of `flags` that change the answer to a request.
JournalHead result_settings(const EngineFlags& flags);

// `identity`: of the model (ServedModel, opened without weights); none: it is left out.
JournalHead batch_head_of(const std::string& input_hash, const std::optional<std::string>& identity,
                          const JournalHead& settings);

// 16 hex digits that name the run: equal runs give their rows equal ids.
std::string run_id_of(const JournalHead& head);

}  // namespace spillway
