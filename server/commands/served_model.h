// A model that is ready to complete requests, as `batch` and `generate` see it. main() makes one of
// the runtime; tests make one of a fake scheduler. Values; `owner` keeps the pointees alive.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/status.h"
#include "scheduler/scheduler.h"
#include "server/api/completion.h"
#include "server/config/engine_flags.h"

namespace spillway {

struct ServedModel {
  ApiContext context;
  Scheduler* scheduler = nullptr;  // Null when opened without weights
  std::string identity;            // Differs whenever weights or format differ, as far as is known
  std::shared_ptr<void> owner;
};

// How much of the model a command needs: kTokenizer leaves the weights where they are.
enum class OpenFor : uint8_t { kRunning, kTokenizer };

using OpenModel =
    std::function<Result<ServedModel>(const std::string& model, const EngineFlags&, OpenFor)>;

}  // namespace spillway
