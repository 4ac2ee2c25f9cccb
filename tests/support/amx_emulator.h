// The tile instructions of Intel AMX on CPUs without them, so that the machine code of our kernels
// is tested on any x86-64: an instruction that a CPU does not know raises SIGILL, and the handler
// does what Intel's manual (SDM, volume 2) says that the instruction does, on tiles of the thread's
// own, and goes on behind it. On a CPU that has them they run as they are.
//
// For amx_test alone, which is linked with amx_emulator.cc instead of kernels/cpu/amx.cc: the
// handler is there from the start of the program, and has_amx_bf16() and has_amx_int8() hold. Other
// illegal instructions, and tiles used against the manual, go to the handler before it, or end the
// program. (Catch's own handler would replace it: CATCH_CONFIG_NO_POSIX_SIGNALS.)
#pragma once

#include <cstdint>

namespace spillway::test {

// Instructions that were emulated so far, of all threads: none where the CPU has them.
uint64_t emulated_tile_instructions();

// Whether the CPU knows them.
bool has_tile_instructions();

}  // namespace spillway::test
