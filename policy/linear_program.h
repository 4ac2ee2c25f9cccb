// Linear programs: least cost over variables within bounds, under constraints on their linear
// combinations. Solved by the simplex method of CLP (COIN-OR).
//
// The solver works with absolute tolerances of 1e-9. Callers choose units in which bounds, costs
// and the values of constraints are near 1; coefficients may then lie 1e6 to either side. The same
// program has the same answer every time. Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

enum class LinearVariable : int32_t {};  // Index into one program

struct LinearTerm {
  LinearVariable variable{};
  double coefficient = 0;
};

enum class LinearOutcome : uint8_t { kOptimal, kInfeasible, kUnbounded };

struct LinearSolution {
  LinearOutcome outcome = LinearOutcome::kInfeasible;
  double cost = 0;             // Set if kOptimal
  std::vector<double> values;  // Set if kOptimal: one per variable, exactly within its bounds

  double operator[](LinearVariable variable) const { return values[static_cast<size_t>(variable)]; }
};

class LinearProgram {
 public:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();  // No bound

  // REQUIRES: `lower` and `cost` finite, `upper` not NaN. (Without lower bounds CLP goes wrong in
  // one of 100,000 random programs.)
  LinearVariable add_variable(double lower, double upper, double cost);

  // lower <= sum of the terms <= upper. Terms of one variable add up. REQUIRES: own variables;
  // finite coefficients; bounds not NaN.
  void add_constraint(std::span<const LinearTerm> terms, double lower, double upper);
  void add_constraint(std::initializer_list<LinearTerm> terms, double lower, double upper) {
    add_constraint(std::span(terms.begin(), terms.size()), lower, upper);
  }

  // Returns the least cost, or that there is none. kInvalidArgument when the solver gives up, or
  // its answer breaks a constraint by more than 1e-6 of the constraint's largest part: the units
  // are too far apart.
  Result<LinearSolution> minimize() const;

 private:
  struct Bounds {
    double lower = 0, upper = 0;
  };
  struct Entry {
    int32_t variable = 0, constraint = 0;
    double coefficient = 0;
  };

  struct Arrays;

  LinearSolution solve_by_bounds() const;  // For programs without entries
  Arrays arrays_of_this() const;
  Status check(std::span<const double> values) const;

  std::vector<Bounds> variables_, constraints_;
  std::vector<double> costs_;
  std::vector<Entry> entries_;  // Ordered by constraint; each pair once
};

}  // namespace spillway
