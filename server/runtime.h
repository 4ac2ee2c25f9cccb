// A model ready to answer: device, weights, engine, scheduler and tokenizer, opened from MODEL and
// the engine flags. It makes the plan and allocates what the plan says. Owned by the command that
// runs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/planning/make_plan.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {

// A command's requests besides the flags.
struct RuntimeOptions {
  PlanWishes wishes;
  std::shared_ptr<SweepLog> log;  // Null: no sweep is logged
  bool start_scheduler = true;    // Else the caller drives engine() itself
  bool tokenizer_only = false;    // Neither weights nor engine: shape() and tokenizer() work
  // As in ModelSourceOptions: called before a model directory is packed. May be empty.
  std::function<Status(const std::string&)> accepts_source;
  // Shows one progress line ("Loading ..."), without a newline; empty: nothing is shown.
  std::function<void(const std::string&)> say;
};

class Runtime {
 public:
  // kInvalidArgument: flags or model are wrong. kInfeasible: does not fit the budget; the message
  // names the missing bytes and the smallest change. Blocks while it loads.
  static Result<std::unique_ptr<Runtime>> open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options);
  ~Runtime();

  const ModelShape& shape() const;
  const std::string& model_name() const;
  const std::string& source() const;   // The checkpoint's fingerprint: changes when it changes
  const Tokenizer* tokenizer() const;  // Null: the model has none, token ids only.
  Scheduler& scheduler();              // REQUIRES: start_scheduler
  Engine& engine();                    // REQUIRES: not start_scheduler
  Device& device();
  const Plan& plan() const;

  struct State;  // server/runtime_state.h

 private:
  explicit Runtime(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One line that describes the plan in use, for display.
std::string plan_line(const Runtime& runtime);

}  // namespace spillway
