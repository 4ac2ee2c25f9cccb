// attention() of caches in one piece, and again of the same caches under block tables.
#pragma once

#include "kernels/ops.h"

namespace spillway::test {

// Calls attention() twice: with copies of all caches and states, the blocks of a cache apart, in no
// order and with guards between them, and then as it is asked to. REQUIRES: the caches are in one
// piece. Outputs, caches and states must have the same bits both times, and the guards theirs. The
// tables are filled with null as soon as attention() has returned. Waits for both.
void attention_both_ways(Device& device, Stream& stream, const AttentionArgs& args);

}  // namespace spillway::test
