#include "policy/linear_program.h"

#include <coin/Clp_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

namespace spillway {

namespace {

constexpr double kTolerance = 1e-9;  // CLP's own default is 1e-7
constexpr double kBroken = 1e-6;     // Relative; see minimize()

using Model = std::unique_ptr<Clp_Simplex, decltype(&Clp_deleteModel)>;

Status given_up(int status, int secondary) {
  return invalid_argument("the linear program's solver gave up (status " + std::to_string(status) +
                          ", " + std::to_string(secondary) + "); its units are too far apart");
}

// Solves the loaded program.
Result<LinearOutcome> run(Clp_Simplex* model) {
  Clp_dual(model, 0);
  const int first = Clp_status(model);
  if (first == 0) return LinearOutcome::kOptimal;
  // CLP reports some unbounded programs as infeasible. Without costs no program is unbounded.
  const std::vector<double> nothing(static_cast<size_t>(Clp_numberColumns(model)), 0.0);
  Clp_chgObjCoefficients(model, nothing.data());
  Clp_initialSolve(model);
  const int status = Clp_status(model);
  if (status == 1) return LinearOutcome::kInfeasible;
  if (status == 0 && (first == 1 || first == 2)) return LinearOutcome::kUnbounded;
  return given_up(status, Clp_secondaryStatus(model));
}

}  // namespace

// The matrix by columns and the bounds as separate arrays, as CLP expects them.
struct LinearProgram::Arrays {
  std::vector<CoinBigIndex> start;
  std::vector<int> row;
  std::vector<double> value, lower, upper, row_lower, row_upper;
};

LinearVariable LinearProgram::add_variable(double lower, double upper, double cost) {
  SPILLWAY_CHECK(std::isfinite(lower) && !std::isnan(upper) && std::isfinite(cost));
  variables_.push_back({lower, upper});
  costs_.push_back(cost);
  return LinearVariable(static_cast<int32_t>(variables_.size()) - 1);
}

void LinearProgram::add_constraint(std::span<const LinearTerm> terms, double lower, double upper) {
  SPILLWAY_CHECK(!std::isnan(lower) && !std::isnan(upper));
  const auto constraint = static_cast<int32_t>(constraints_.size());
  const size_t first = entries_.size();
  constraints_.push_back({lower, upper});
  for (const LinearTerm& term : terms) {
    const auto variable = static_cast<int32_t>(term.variable);
    SPILLWAY_CHECK(variable >= 0 && static_cast<size_t>(variable) < variables_.size());
    SPILLWAY_CHECK(std::isfinite(term.coefficient));
    const auto same = std::find_if(entries_.begin() + static_cast<ptrdiff_t>(first), entries_.end(),
                                   [&](const Entry& e) { return e.variable == variable; });
    if (same != entries_.end()) {
      same->coefficient += term.coefficient;
    } else {
      entries_.push_back({variable, constraint, term.coefficient});
    }
  }
}

Result<LinearSolution> LinearProgram::minimize() const {
  const auto empty = [](const Bounds& b) { return b.lower > b.upper; };
  if (std::any_of(variables_.begin(), variables_.end(), empty) ||
      std::any_of(constraints_.begin(), constraints_.end(), empty)) {
    return LinearSolution{};
  }
  if (entries_.empty()) return solve_by_bounds();

  LinearSolution solution;
  try {
    const Arrays arrays = arrays_of_this();
    const Model model(Clp_newModel(), &Clp_deleteModel);
    Clp_setLogLevel(model.get(), 0);
    Clp_setPrimalTolerance(model.get(), kTolerance);
    Clp_setDualTolerance(model.get(), kTolerance);
    Clp_setMaximumIterations(
        model.get(), static_cast<int>(std::min<size_t>(1000 + 100 * entries_.size(), 100'000'000)));
    Clp_loadProblem(model.get(), static_cast<int>(variables_.size()),
                    static_cast<int>(constraints_.size()), arrays.start.data(), arrays.row.data(),
                    arrays.value.data(), arrays.lower.data(), arrays.upper.data(), costs_.data(),
                    arrays.row_lower.data(), arrays.row_upper.data());
    SPILLWAY_ASSIGN_OR_RETURN(solution.outcome, run(model.get()));
    if (solution.outcome != LinearOutcome::kOptimal) return solution;
    const double* values = Clp_primalColumnSolution(model.get());
    solution.values.assign(values, values + variables_.size());
  } catch (...) {  // CoinError has no base class
    return given_up(-1, 0);
  }
  SPILLWAY_RETURN_IF_ERROR(check(solution.values));
  for (size_t i = 0; i < variables_.size(); ++i) {
    double& value = solution.values[i];
    value = std::clamp(value, variables_[i].lower, variables_[i].upper);
    solution.cost += costs_[i] * value;
  }
  return solution;
}

LinearProgram::Arrays LinearProgram::arrays_of_this() const {
  Arrays arrays;
  arrays.start.assign(variables_.size() + 1, 0);
  for (const Entry& entry : entries_) ++arrays.start[static_cast<size_t>(entry.variable) + 1];
  std::partial_sum(arrays.start.begin(), arrays.start.end(), arrays.start.begin());
  arrays.row.resize(entries_.size());
  arrays.value.resize(entries_.size());
  std::vector<CoinBigIndex> next(arrays.start);
  for (const Entry& entry : entries_) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(entry.variable)]++);
    arrays.row[at] = entry.constraint;
    arrays.value[at] = entry.coefficient;
  }
  for (const Bounds& b : variables_) {
    arrays.lower.push_back(b.lower);
    arrays.upper.push_back(b.upper);
  }
  for (const Bounds& b : constraints_) {
    arrays.row_lower.push_back(b.lower);
    arrays.row_upper.push_back(b.upper);
  }
  return arrays;
}

// Sets each variable by itself to the bound that costs least.
LinearSolution LinearProgram::solve_by_bounds() const {
  LinearSolution solution;
  for (const Bounds& b : constraints_) {
    if (b.lower > kTolerance || b.upper < -kTolerance) return {};
  }
  for (size_t i = 0; i < variables_.size(); ++i) {
    const auto [lower, upper] = variables_[i];
    double value = costs_[i] > 0 ? lower : costs_[i] < 0 ? upper : std::clamp(0.0, lower, upper);
    if (!std::isfinite(value)) return {.outcome = LinearOutcome::kUnbounded, .values = {}};
    solution.values.push_back(value);
    solution.cost += costs_[i] * value;
  }
  solution.outcome = LinearOutcome::kOptimal;
  return solution;
}

// CLP's optimality holds in its own scaling; this checks the program as it was given.
Status LinearProgram::check(std::span<const double> values) const {
  const auto breaks = [](double value, const Bounds& b, double size) {
    const double slack = kBroken * std::max(1.0, size);
    return !(value >= b.lower - slack && value <= b.upper + slack);
  };
  std::vector<double> sums(constraints_.size()), sizes(constraints_.size());
  for (const Entry& entry : entries_) {
    const double part = entry.coefficient * values[static_cast<size_t>(entry.variable)];
    sums[static_cast<size_t>(entry.constraint)] += part;
    double& size = sizes[static_cast<size_t>(entry.constraint)];
    size = std::max(size, std::abs(part));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (breaks(values[i], variables_[i], std::abs(values[i]))) {
      return invalid_argument("the linear program's solver left the bounds of variable " +
                              std::to_string(i) + "; its units are too far apart");
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (breaks(sums[i], constraints_[i], sizes[i])) {
      return invalid_argument("the linear program's solver broke constraint " + std::to_string(i) +
                              "; its units are too far apart");
    }
  }
  return {};
}

}  // namespace spillway
