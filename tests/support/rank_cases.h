// What every kind of RankGroup has to do: run by each rank, on its device. For
// thread_ranks_test.cc, mpi_ranks_program.cc, and nccl_ranks_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rank_group.h"

namespace spillway::test {

// What went wrong, a line each; empty: nothing. Every rank of the group calls it.
std::vector<std::string> run_rank_cases(RankGroup& ranks, Device& device);

}  // namespace spillway::test
