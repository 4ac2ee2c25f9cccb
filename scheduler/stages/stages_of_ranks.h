// OtherRanks of a scheduler whose rank is the last of several pipeline stages, each of which is
// several ranks that share its layers: the stages before it, and the ranks beside it.
#pragma once

#include <memory>

#include "scheduler/stages/other_ranks.h"

namespace spillway {

// `stages`: stage_ring(), whose books know the caches of all ranks of those stages. `beside`:
// layer_ranks() of the stage that schedules.
std::unique_ptr<OtherRanks> stages_of_ranks(std::unique_ptr<OtherRanks> stages,
                                            std::unique_ptr<OtherRanks> beside);

}  // namespace spillway
