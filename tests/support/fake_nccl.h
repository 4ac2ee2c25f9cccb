// What tests and the fake runtime ask the fake NCCL (fake_nccl.cc).
#pragma once

namespace spillway::fake_nccl {

int communicators();  // That have not ended

// Whether, since this was last asked, a stream came to a call and could not go on, because other
// ranks' streams have to come to theirs, or these have not made them yet. If so it gives other
// threads a moment; false when `began` (steady_seconds()) is longer ago than the patience. The lock
// of the fake runtime is held, once.
bool wait_for_ranks(double began);

// Seconds after which a call that another rank does not make is taken for a deadlock.
void set_patience(double seconds);

}  // namespace spillway::fake_nccl
