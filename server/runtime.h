// A model ready to answer, in three steps: open_model() opens MODEL as far as a plan needs it,
// make_plan() or the search (start_plan.h) makes the plan, and open_runtime() allocates and loads
// what the plan says. Owned by the command that runs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "kernels/base/timeline.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "policy/hardware_profile.h"
#include "scheduler/block_scheduler.h"
#include "scheduler/planning/engine_flags.h"
#include "scheduler/planning/make_plan.h"
#include "scheduler/planning/model_to_plan.h"
#include "server/chat/chat_template.h"
#include "server/tokenizer/tokenizer.h"

namespace spillway {

// A command's requests besides the flags.
struct RuntimeOptions {
  PlanWishes wishes;
  std::shared_ptr<SweepLog> log;  // Null: no sweep is logged
  // Makes the scheduler's bound of a plan's sweeps; may be empty, and may give none.
  std::function<SweepBound(const Plan&)> bound;
  bool timeline = false;        // Runtime::timeline() is there
  bool start_scheduler = true;  // Else the caller drives engine() itself
  // Makes the stages before the engine's layers, once these are loaded. May be empty.
  std::function<Result<std::unique_ptr<OtherRanks>>()> others;
  // EngineOptions::ranks, where the flags name several. The runtime keeps it.
  std::shared_ptr<RankGroup> ranks;
  // EngineOptions::observe; only on a CPU. May be empty.
  decltype(EngineOptions::observe) observe;
  // As in ModelSourceOptions: called before a model directory is packed. May be empty.
  std::function<Status(const std::string&)> accepts_source;
  // Shows one progress line ("Loading ..."), without a newline; empty: nothing is shown.
  std::function<void(const std::string&)> say;
};

// MODEL with its device: its shape, the table of its packed file and its tokenizer, no weights.
struct OpenedModel {
  EngineFlags flags;
  std::unique_ptr<Trace> trace;  // Null: nothing is recorded.
  Timeline* timeline = nullptr;  // `trace`, where the options ask for one
  std::unique_ptr<Device> device;
  ModelToPlan model;
  std::unique_ptr<Tokenizer> tokenizer;  // Null: the model has none, token ids only.
  std::string tokenizer_error;           // Why its files cannot be used; empty: it has none
  std::unique_ptr<ChatTemplate> chat;    // Null without a tokenizer
};

// Of the options it reads accepts_source and say. `damaged`: as in ModelSourceOptions.
// kInvalidArgument: flags or model are wrong. Blocks while it packs a directory, once.
Result<OpenedModel> open_model(const std::string& model, const EngineFlags& flags,
                               const RuntimeOptions& options,
                               std::optional<decltype(ModelFileTable::file_id)> damaged = {});

// The machine that the model was opened on, with the memory and disk space that are free now.
// `profile`: says whether CPU attention pays; null: it does not.
PlanMachine machine_of(const OpenedModel& opened, const HardwareProfile* profile);

class Runtime {
 public:
  // Makes the plan of an opened model.
  using Planner = std::function<Result<Plan>(const OpenedModel&)>;

  // All three steps; without `planner` the default heuristic makes the plan. A damaged file in the
  // cache is packed again from its directory, once. kInvalidArgument: flags or model are wrong.
  // kCorruption: the model's files are damaged. kIoError: also the packed file, when it was written
  // just before. kInfeasible: does not fit the budget; the message names the missing bytes and the
  // smallest change. Blocks while it loads.
  static Result<std::unique_ptr<Runtime>> open(const std::string& model, const EngineFlags& flags,
                                               const RuntimeOptions& options,
                                               const Planner& planner = {});
  ~Runtime();

  const ModelShape& shape() const;
  const std::string& model_name() const;
  const std::string& source() const;   // The checkpoint's fingerprint: changes when it changes
  const Tokenizer* tokenizer() const;  // Null as in OpenedModel
  const std::string& tokenizer_error() const;  // As in OpenedModel
  const ChatTemplate* chat() const;            // As in OpenedModel
  Scheduler& scheduler();                      // REQUIRES: start_scheduler
  Engine& engine();                            // REQUIRES: not start_scheduler
  OtherRanks* others();  // Likewise; of rank 0. Null: the engine has the whole model, or follows
  Device& device();
  const Plan& plan() const;
  Timeline* timeline() const;  // Null unless the options asked for it

  struct State;  // server/runtime_state.h
  explicit Runtime(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

// Carries out a plan that was made of this model on this machine. kCorruption: the packed file is
// damaged. kCapacity: the memory is not free any more. Blocks while it loads.
Result<std::unique_ptr<Runtime>> open_runtime(OpenedModel opened, Plan plan,
                                              const RuntimeOptions& options);

// One line that describes the plan in use, for display.
std::string plan_line(const Runtime& runtime);

}  // namespace spillway
