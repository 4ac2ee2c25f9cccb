// The engine flags (scheduler/planning/engine_flags.h) as options of a command line, environment
// and settings file: their names, meanings and help, equal for every command that runs a model.
#pragma once

#include <string>
#include <vector>

#include "scheduler/planning/engine_flags.h"
#include "server/cli/flags/settings.h"

namespace spillway {

// Help of the argument MODEL.
constexpr const char* kModelHelp =
    "a Hugging Face model directory, a .gguf file or a packed .spill file; with --dummy-weights "
    "the "
    "name of a shape such as opt-1.3b";

// --disk-dir. `folders` outlives the settings.
void add_disk_dirs(Settings& settings, std::vector<std::string>* folders, const std::string& help);

// `flags` outlives the settings.
void add_engine_flags(Settings& settings, EngineFlags* flags);

}  // namespace spillway
