// A benchmark's result for programs and for people. Pure functions.
#pragma once

#include <string>

#include "server/cli/bench/bench_result.h"

namespace spillway {

// The object of `bench --json`. Names and units of its fields stay: programs read them.
std::string bench_json(const BenchResult& result);

// Some lines of text, with a newline after each.
std::string bench_table(const BenchResult& result);

// Shares of the tiers in whole per cent that add up to 100; all on the device where there is
// nothing.
TierPercent percent_by_tier(const TierBytes& bytes);

// "20,0,80": as the flags have it.
std::string percent_text(const TierPercent& percent);

}  // namespace spillway
