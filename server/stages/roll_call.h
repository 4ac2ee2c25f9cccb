// The beginning of a run on several ranks: each says what it is, and all learn whether they fit
// together before anything slow happens. Blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/rank_mail.h"
#include "scheduler/planning/engine_flags.h"

namespace spillway {

struct RankSelf {
  std::string version = SPILLWAY_VERSION;
  std::string host;
  std::string flags;      // Those that all ranks must have alike (shared_flags())
  int64_t cores = 1;      // That this process may use
  int64_t cores_all = 1;  // That all processes on its host may use
};

// This process.
RankSelf rank_self(const EngineFlags& flags);

// The flags of which every rank must have the same, as text.
std::string shared_flags(const EngineFlags& flags);

struct Roll {
  std::vector<RankSelf> ranks;
  std::string name(int rank) const;    // "rank 1 (host-b)"
  int64_t on_host_of(int rank) const;  // How many ranks are on the same host
};

// Call it on all ranks. kInvalidArgument, on all of them alike: versions or flags differ, or
// --stages is not the number of ranks.
Result<Roll> call_roll(RankMail& mail, const RankSelf& self, int64_t stages);

// What is wrong with how a launcher bound ranks to cores, where the flags say nothing; empty:
// nothing.
std::string binding_warning(const Roll& roll, const EngineFlags& flags);

// What a rank takes of its host where the flags say nothing: its share of the processors and of the
// memory, if other ranks are there, too.
void take_share(const Roll& roll, int rank, EngineFlags* flags);

}  // namespace spillway
