// The rates that a benchmark is held against, measured in its own process just before the run, with
// the model in memory. One thread, which blocks: a few seconds for each shape of matrix.
#pragma once

#include "server/commands/bench_result.h"
#include "server/runtime.h"

namespace spillway {

// Whether the plan has bytes on disk that a sweep moves.
bool uses_disk(const RuntimePlan& plan);

// Fills in result->ceilings and result->matrix: every matrix at the heights that the run will have,
// memory, the link to a device with memory of its own and its attention to prompts, and, where the
// plan uses the disk, its two links. kCapacity: no memory to measure with. An error of the disk is
// one of the run.
Status measure_ceilings(const BenchFlags& flags, Runtime& runtime, BenchResult* result);

// Fills in the bounds. REQUIRES: ceilings and sweeps are there.
void hold_against_bound(Runtime& runtime, BenchResult* result);

}  // namespace spillway
