// What `bench --check` asks of a result: that no bound was beaten, and that each kernel reaches its
// least share of what the hardware gives. Pure functions of the result: it is the program that
// fails a slow run, on a machine that is fit for it, and no test that could only guess.
#pragma once

#include <string>
#include <vector>

#include "server/cli/bench/bench_result.h"

namespace spillway {

// A figure and the least that it may be.
struct Gate {
  std::string name;
  double value = 0, least = 0;
  bool passed() const { return value >= least; }
};

// Of a CPU, whose peaks are known: products of each height over their own ceiling (the peak of the
// arithmetic that they use, or memory where their few rows wait for it), and both attentions. Other
// devices have none, and neither have models of less than 1024 inputs to a layer.
std::vector<Gate> gates_of(const BenchResult& result);

// The parts of the run that took less than their bound allows: "total", "prefill", "decode".
std::vector<std::string> beaten_bounds(const BenchResult& result);

// kIoError, with every gate that was missed and every bound that was beaten.
Status check_result(const BenchResult& result);

}  // namespace spillway
