// A model on several ranks as pipeline stages: rank 0 opens a Runtime whose scheduler has the
// others work for it, and they follow until it ends. Both sides go through the same steps together:
// each opens the model and says what its machine is, rank 0 cuts the layers, each plans its run of
// them, and only when all plans fit is anything loaded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/stage_cost.h"
#include "server/runtime.h"
#include "server/stages/roll_call.h"

namespace spillway {

// This process among those of the run.
class StageRank {
 public:
  StageRank(std::shared_ptr<RankMail> mail, Roll roll)
      : mail_(std::move(mail)), roll_(std::move(roll)) {}
  // On rank 0: tells the others that nothing will come, unless something else does.
  ~StageRank();
  StageRank(const StageRank&) = delete;
  StageRank& operator=(const StageRank&) = delete;

  const std::shared_ptr<RankMail>& mail() const { return mail_; }
  const Roll& roll() const { return roll_; }
  // From now on somebody else tells them.
  void hand_over() { handed_over_ = true; }

 private:
  const std::shared_ptr<RankMail> mail_;
  const Roll roll_;
  bool handed_over_ = false;
};

// Calls the roll. Errors as call_roll().
Result<std::unique_ptr<StageRank>> join_stages(std::shared_ptr<RankMail> mail,
                                               const EngineFlags& flags);

struct StartedStages {
  std::unique_ptr<Runtime> runtime;
  std::optional<StagePrediction> predicted;  // None: some machine has no hardware profile
};

// On rank 0, once. Searches for the block and the prompt tokens of a sweep for `workload`, as
// open_planned(), unless it is empty or flags name them. Errors as Runtime::open(), with the rank's
// name where it is another one's. The runtime's end ends the other ranks. `rank` outlives it.
Result<StartedStages> open_stages(StageRank& rank, const std::string& model, EngineFlags flags,
                                  RuntimeOptions options,
                                  const std::vector<RequestGroup>& workload = {});

// On the others: until rank 0 ends. An error here was told to rank 0, which reports it. Blocks.
Status follow_stages(const StageRank& rank, const std::string& model, EngineFlags flags);

}  // namespace spillway
