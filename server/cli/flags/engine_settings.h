// The engine flags (scheduler/planning/engine_flags.h) as options of a command line, environment
// and settings file: their names, meanings and help, the same for every command that runs a model.
#pragma once

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// `flags` outlives the settings.
void add_engine_flags(Settings& settings, EngineFlags* flags);

}  // namespace spillway
