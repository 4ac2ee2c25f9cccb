// The rates that a benchmark is held against, measured in its own process just before and just
// after the run, with the model in memory. One thread, which blocks: a few seconds for each shape
// of matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "server/cli/bench/bench_result.h"
#include "server/runtime.h"

namespace spillway {

// Whether the plan has bytes on disk that a sweep moves.
bool uses_disk(const Plan& plan);

// Rows of the linear layers in decode and in prefill, the head's included: a layer gives them no
// more than its chunk at once, on a device with memory of its own no more than a micro-batch
// either.
std::vector<int64_t> ceiling_rows(const BenchFlags& flags, const Plan& plan);

// The hardware: the peaks of a CPU's instructions, or of a device with memory of its own the best
// product of any height; memory; the link to such a device; and, where the plan uses the disk, its
// two links. Kernels: every matrix at the heights that the run has, and attention.
// kCapacity: no memory to measure with. An error of the disk is one of the run.
Result<MeasuredCeilings> measure_ceilings(const BenchFlags& flags, Runtime& runtime,
                                          bool after_run);

// What the disk gives a run, in whichever sizes and numbers of requests it likes best: a ceiling
// must not be the way in which the engine happens to ask (bench_disk.cc). Reading from the weights'
// file if some are there, else after the run from the cache that the run left, else from a new
// file; writing to a new one, where the plan writes. Blocks for some seconds. An error of the disk
// is one of the run.
Status measure_disk_ceilings(Device& device, const Plan& plan, bool after_run,
                             MeasuredCeilings* found);

// Fills in the bounds. REQUIRES: ceilings and sweeps are there.
void hold_against_bound(Runtime& runtime, BenchResult* result);

}  // namespace spillway
