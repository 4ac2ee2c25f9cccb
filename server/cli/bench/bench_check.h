// The checks of `bench --check`: that no bound was beaten, and that each kernel reaches its minimum
// share of the hardware's rate. Pure functions of the result: the program fails a slow run, on a
// suitable machine, where a test could only guess.
#pragma once

#include <string>
#include <vector>

#include "server/cli/bench/bench_result.h"

namespace spillway {

// A figure and its minimum.
struct Gate {
  std::string name;
  double value = 0, least = 0;
  bool passed() const { return value >= least; }
};

// The gates on a CPU, whose peaks are known: matrix products of each batch size over their own
// ceiling (the peak of their arithmetic, or memory where their few rows wait for it), and both
// attentions. Other devices have none, and neither have models of less than 1024 inputs to a layer.
std::vector<Gate> gates_of(const BenchResult& result);

// The parts of the run that took less than their bound allows: "total", "prefill", "decode".
std::vector<std::string> beaten_bounds(const BenchResult& result);

// kIoError, with every missed gate and every beaten bound.
Status check_result(const BenchResult& result);

}  // namespace spillway
