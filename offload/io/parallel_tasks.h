// Runs numbered tasks on a few threads until all are done or the first one fails.
#pragma once

#include <cstddef>
#include <functional>

#include "kernels/base/status.h"

namespace spillway {

// Calls task(index, thread) for every index in [0, count), roughly in order, on `threads` threads
// of its own; `thread` is in [0, threads). Meanwhile calls tick() on the calling thread about ten
// times a second; when that returns false the remaining tasks are skipped and the result is
// kCancelled. After a failure no new task starts; the first error is returned. Blocks until the
// threads have ended. REQUIRES: threads > 0.
Status run_tasks(size_t count, unsigned threads,
                 const std::function<Status(size_t, unsigned)>& task,
                 const std::function<bool()>& tick);

// Number of threads for work that reads, computes and writes: `wanted`, or, when that is 0, two
// more than cores, so that some wait for the disk while every core is busy.
unsigned reading_threads(unsigned wanted);

}  // namespace spillway
