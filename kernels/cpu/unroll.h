#pragma once
// SPILLWAY_UNROLL_TIMES(n) before a loop: unrolled n times, so that an array of vectors lies in
// registers. Under the sanitizers the loop stays as it is: their checks of each copy take minutes
// to compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_UNROLL_TIMES(count)
#else
#define SPILLWAY_PRAGMA(text) _Pragma(#text)
#define SPILLWAY_UNROLL_TIMES(count) SPILLWAY_PRAGMA(GCC unroll count)
#endif
