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
  std::string flags;            // Those that all ranks must have alike (shared_flags())
  std::vector<int> processors;  // That this process may use, by number
  int64_t cores = 1;            // Of these (usable_cores())
  bool bound = false;           // mpirun chose them for it
};

// This process.
RankSelf rank_self(const EngineFlags& flags);

// The flags of which every rank must have the same, as text.
std::string shared_flags(const EngineFlags& flags);

struct Roll {
  std::vector<RankSelf> ranks;
  std::string name(int rank) const;       // "rank 1 (host-b)"
  int64_t on_host_of(int rank) const;     // How many ranks are on the same host
  int64_t place_on_host(int rank) const;  // How many of these come before it
};

// Call it on all ranks. kInvalidArgument, on all of them alike: versions or flags differ, or
// --stages is not the number of ranks.
Result<Roll> call_roll(RankMail& mail, const RankSelf& self, int64_t stages);

// That mpirun bound ranks to a core each, which it does unless told, where the flags say nothing of
// threads; empty: it did not.
std::string binding_warning(const Roll& roll, const EngineFlags& flags);

// That the ranks of a host compute with more threads than it has cores, because --threads says so;
// empty: they do not.
std::string crowding_warning(const Roll& roll, const EngineFlags& flags);

// What a rank takes of its host where the flags say nothing: its share of the cores and of the
// memory, if other ranks are there, too; with --device cuda, a GPU for each rank of its own. Of
// --gpus they have equal parts. kInvalidArgument: these GPUs cannot be divided so, or there are
// fewer cores than ranks that share layers. Call it on the rank's host.
Status take_share(const Roll& roll, int rank, EngineFlags* flags);

}  // namespace spillway
