// Measures the rates that a benchmark is compared with, in its own process just before and just
// after the run, with the model in memory. One thread, which blocks: a few seconds for each shape
// of matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/cli/bench/bench_result.h"
#include "server/runtime.h"

namespace spillway {

// Whether a sweep of this plan moves bytes to or from disk.
bool uses_disk(const Plan& plan);

// Batch sizes of the linear layers in decode and in prefill, the head's included: at most a layer's
// chunk at once, on a discrete device also at most a micro-batch.
std::vector<int64_t> ceiling_rows(const BenchFlags& flags, const Plan& plan);

// Host memory that measurements read: past the caches (kernels/measure/rates.h), where the plan
// leaves that much of the budget, and other programs of the machine.
size_t ceiling_bytes(const Plan& plan);

// What to say where `host_bytes` are fewer than would be past the caches; empty: they are enough.
std::string caches_note(size_t host_bytes);

// Measures the hardware: the peaks of a CPU's instructions, or a discrete device's fastest matrix
// product at any batch size; memory; the link to such a device; and, where the plan uses the disk,
// its read and write rates. Kernels: every matrix at the run's batch sizes, and attention.
// `host_bytes`: ceiling_bytes(). kCapacity: no memory to measure with. A disk error is also one of
// the run.
Result<MeasuredCeilings> measure_ceilings(const BenchFlags& flags, Runtime& runtime,
                                          size_t host_bytes, bool after_run);

// Measures the disk's best rates over all request sizes and depths: a ceiling must not depend on
// the engine's own way of asking (bench_disk.cc). Reads from the weights' file if some are there,
// else after the run from the cache that the run left, else from a new file; writes to a new one,
// where the plan writes. Blocks for some seconds. A disk error is also one of the run.
Status measure_disk_ceilings(Device& device, const Plan& plan, bool after_run,
                             MeasuredCeilings* found);

// Fills in the bounds. REQUIRES: ceilings and sweeps are there.
void hold_against_bound(Runtime& runtime, BenchResult* result);

}  // namespace spillway
