// A benchmark's result as JSON and as text. Pure functions.
#pragma once

#include <string>

#include "server/cli/bench/bench_result.h"

namespace spillway {

// The object of `bench --json`. Names and units of its fields are stable: programs read them.
std::string bench_json(const BenchResult& result);

// Some lines of text, with a newline after each.
std::string bench_table(const BenchResult& result);

// a / b, and 0 where b is 0.
double ratio(double a, double b);

}  // namespace spillway
