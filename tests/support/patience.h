// How long a test waits for what correct code always reaches.
#pragma once

namespace spillway::test {

// Seconds. The bound only ends a test of faulty code: it leaves room for ThreadSanitizer, which is
// tens of times slower, on a machine that does other things beside.
inline constexpr double kPatience = 120;

}  // namespace spillway::test
