// Linear programs with known answers, and random ones against every vertex there is.
#include "policy/linear_program.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <random>

namespace spillway::linear_program_test {
namespace {

constexpr double kInfinity = LinearProgram::kInfinity;

LinearSolution solved(const LinearProgram& program) {
  auto solution = program.minimize();
  INFO(solution.status().message());
  REQUIRE(solution.ok());
  return solution.value();
}

TEST_CASE("a linear program's least cost is found at a vertex") {
  // Profit 3x + 5y with x <= 4, 2y <= 12, 3x + 2y <= 18: 36 at (2, 6).
  LinearProgram program;
  const LinearVariable x = program.add_variable(0, 4, -3);
  const LinearVariable y = program.add_variable(0, kInfinity, -5);
  program.add_constraint({{y, 2}}, -kInfinity, 12);
  program.add_constraint({{x, 3}, {y, 2}}, -kInfinity, 18);
  const LinearSolution solution = solved(program);
  REQUIRE(solution.outcome == LinearOutcome::kOptimal);
  CHECK(solution.cost == Approx(-36));
  CHECK(solution[x] == Approx(2));
  CHECK(solution[y] == Approx(6));
}

TEST_CASE("equalities, ranges and negative bounds hold") {
  LinearProgram program;
  const LinearVariable x = program.add_variable(-100, kInfinity, 1);
  const LinearVariable y = program.add_variable(-5, -1, 1);
  const LinearVariable z = program.add_variable(0, 10, 0);
  program.add_constraint({{x, 1}, {z, 1}}, 3, 3);
  program.add_constraint({{x, 1}, {y, -1}}, -2, 4);  // x >= y - 2
  const LinearSolution solution = solved(program);
  REQUIRE(solution.outcome == LinearOutcome::kOptimal);
  CHECK(solution.cost == Approx(-12));
  CHECK(solution[x] == Approx(-7));
  CHECK(solution[y] == -5);
  CHECK(solution[z] == Approx(10));
}

TEST_CASE("terms of one variable add up") {
  LinearProgram program;
  const LinearVariable x = program.add_variable(0, kInfinity, 1);
  program.add_constraint({{x, 1}, {x, 2}}, 6, kInfinity);
  CHECK(solved(program)[x] == Approx(2));
}

TEST_CASE("what cannot hold is infeasible, not unbounded") {
  LinearProgram program;
  const LinearVariable x = program.add_variable(0, kInfinity, -1);  // Would fall for ever
  const LinearVariable y = program.add_variable(0, 1, 0);
  program.add_constraint({{y, 1}}, 2, kInfinity);
  program.add_constraint({{x, 1}, {y, -1}}, 0, kInfinity);
  CHECK(solved(program).outcome == LinearOutcome::kInfeasible);

  LinearProgram crossed;
  crossed.add_variable(2, 1, 0);
  CHECK(solved(crossed).outcome == LinearOutcome::kInfeasible);

  LinearProgram together;
  const LinearVariable a = together.add_variable(0, 1, 0);
  const LinearVariable b = together.add_variable(0, 1, 0);
  together.add_constraint({{a, 1}, {b, 1}}, 2.001, 3);
  CHECK(solved(together).outcome == LinearOutcome::kInfeasible);
}

TEST_CASE("a cost without end is unbounded") {
  LinearProgram program;
  const LinearVariable x = program.add_variable(0, kInfinity, -1);
  const LinearVariable y = program.add_variable(0, kInfinity, 0);
  program.add_constraint({{x, 1}, {y, -1}}, -kInfinity, 1);
  CHECK(solved(program).outcome == LinearOutcome::kUnbounded);
}

TEST_CASE("more constraints than needed in one vertex do no harm") {
  // Beale's example: the textbook rule cycles for ever. -1/20 at (1/25, 0, 1, 0).
  LinearProgram program;
  const LinearVariable a = program.add_variable(0, kInfinity, -0.75);
  const LinearVariable b = program.add_variable(0, kInfinity, 150);
  const LinearVariable c = program.add_variable(0, kInfinity, -0.02);
  const LinearVariable d = program.add_variable(0, kInfinity, 6);
  program.add_constraint({{a, 0.25}, {b, -60}, {c, -0.04}, {d, 9}}, -kInfinity, 0);
  program.add_constraint({{a, 0.5}, {b, -90}, {c, -0.02}, {d, 3}}, -kInfinity, 0);
  program.add_constraint({{c, 1}}, -kInfinity, 1);
  const LinearSolution solution = solved(program);
  REQUIRE(solution.outcome == LinearOutcome::kOptimal);
  CHECK(solution.cost == Approx(-0.05));
  CHECK(solution[a] == Approx(0.04));
  CHECK(solution[c] == Approx(1));
}

TEST_CASE("a program without terms is solved by its bounds") {
  LinearProgram program;
  const LinearVariable x = program.add_variable(-3, 7, 2);
  const LinearVariable y = program.add_variable(-3, 7, -1);
  const LinearVariable z = program.add_variable(4, 7, 0);
  const LinearSolution solution = solved(program);
  REQUIRE(solution.outcome == LinearOutcome::kOptimal);
  CHECK(solution.cost == -13);
  CHECK(solution[x] == -3);
  CHECK(solution[y] == 7);
  CHECK(solution[z] == 4);

  program.add_constraint({}, -1, 1);
  CHECK(solved(program).outcome == LinearOutcome::kOptimal);
  program.add_constraint({}, 1, 2);
  CHECK(solved(program).outcome == LinearOutcome::kInfeasible);
  CHECK(solved(LinearProgram()).outcome == LinearOutcome::kOptimal);

  LinearProgram endless;
  endless.add_variable(0, kInfinity, -1);
  CHECK(solved(endless).outcome == LinearOutcome::kUnbounded);
}

TEST_CASE("coefficients far apart are solved to six digits") {
  // 1e6 x >= 2 + y and 1e-5 y >= 3e-5: x = 5e-6, y = 3.
  LinearProgram program;
  const LinearVariable x = program.add_variable(0, kInfinity, 1e6);
  const LinearVariable y = program.add_variable(0, kInfinity, 1);
  program.add_constraint({{x, 1e6}, {y, -1}}, 2, kInfinity);
  program.add_constraint({{y, 1e-5}}, 3e-5, kInfinity);
  const LinearSolution solution = solved(program);
  CHECK(solution.cost == Approx(8).epsilon(1e-4));
  CHECK(solution[x] == Approx(5e-6).epsilon(1e-4));
}

// A dense program of up to three variables, for the search over vertices.
struct Dense {
  struct Row {
    std::array<double, 3> of{};
    double lower = 0, upper = 0;
  };
  size_t variables = 0;
  std::array<double, 3> cost{};
  std::vector<Row> rows;  // The bounds of the variables first
};

// Gauss-Jordan over the first `n` columns; nothing when the planes meet in no single point.
std::optional<std::array<double, 3>> meet(std::vector<std::array<double, 4>> planes, size_t n) {
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row) {
      if (std::abs(planes[row][column]) > std::abs(planes[pivot][column])) pivot = row;
    }
    if (std::abs(planes[pivot][column]) < 1e-9) return std::nullopt;
    std::swap(planes[column], planes[pivot]);
    for (size_t row = 0; row < n; ++row) {
      if (row == column) continue;
      const double factor = planes[row][column] / planes[column][column];
      for (size_t i = 0; i < 4; ++i) planes[row][i] -= factor * planes[column][i];
    }
  }
  std::array<double, 3> point{};
  for (size_t i = 0; i < n; ++i) point[i] = planes[i][3] / planes[i][i];
  return point;
}

double dot(const std::array<double, 3>& a, const std::array<double, 3>& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

bool holds(const Dense& dense, const std::array<double, 3>& point) {
  return std::all_of(dense.rows.begin(), dense.rows.end(), [&](const Dense::Row& row) {
    const double value = dot(row.of, point);
    return value >= row.lower - 1e-7 && value <= row.upper + 1e-7;
  });
}

// Every variable within [-size, size]: then there is a vertex where there is any point.
Dense boxed(Dense dense, double size) {
  for (size_t i = 0; i < dense.variables; ++i) {
    dense.rows[i].lower = std::max(dense.rows[i].lower, -size);
    dense.rows[i].upper = std::min(dense.rows[i].upper, size);
  }
  return dense;
}

// The least cost over all points where as many planes meet as there are variables.
std::optional<double> least_by_vertices(const Dense& dense) {
  std::vector<std::array<double, 4>> planes;
  for (const Dense::Row& row : dense.rows) {
    for (const double side : {row.lower, row.upper}) {
      if (std::isfinite(side)) planes.push_back({row.of[0], row.of[1], row.of[2], side});
    }
  }
  std::optional<double> least;
  const auto visit = [&](const std::vector<std::array<double, 4>>& chosen) {
    const auto point = meet(chosen, dense.variables);
    if (!point || !holds(dense, *point)) return;
    const double cost = dot(dense.cost, *point);
    if (!least || cost < *least) least = cost;
  };
  for (size_t i = 0; i < planes.size(); ++i) {
    for (size_t j = i + 1; j < planes.size(); ++j) {
      if (dense.variables == 2) visit({planes[i], planes[j]});
      for (size_t k = j + 1; dense.variables == 3 && k < planes.size(); ++k) {
        visit({planes[i], planes[j], planes[k]});
      }
    }
  }
  return least;
}

// Small whole numbers, so that ties, parallel planes and degenerate vertices are common.
Dense random_dense(std::mt19937_64& random) {
  const auto whole = [&](int least, int most) {
    return double(least) + double(random() % static_cast<uint64_t>(most - least + 1));
  };
  Dense dense;
  dense.variables = 2 + random() % 2;
  for (size_t i = 0; i < dense.variables; ++i) {
    dense.cost[i] = whole(-3, 3);
    Dense::Row bounds;
    bounds.of[i] = 1;
    bounds.lower = whole(-4, 2);
    bounds.upper = bounds.lower + whole(0, 6);
    if (random() % 4 == 0) bounds.upper = kInfinity;
    dense.rows.push_back(bounds);
  }
  for (uint64_t count = random() % 5; count > 0; --count) {
    Dense::Row row;
    for (size_t i = 0; i < dense.variables; ++i) row.of[i] = whole(-3, 3);
    const double side = whole(-6, 6);
    const uint64_t kind = random() % 4;
    row.lower = kind == 0 ? -kInfinity : side;
    row.upper = kind == 0 ? side : kind == 1 ? kInfinity : side + (kind == 2 ? 0 : whole(0, 4));
    dense.rows.push_back(row);
  }
  return dense;
}

LinearProgram program_of(const Dense& dense) {
  LinearProgram program;
  for (size_t i = 0; i < dense.variables; ++i) {
    program.add_variable(dense.rows[i].lower, dense.rows[i].upper, dense.cost[i]);
  }
  for (size_t r = dense.variables; r < dense.rows.size(); ++r) {
    std::vector<LinearTerm> terms;
    for (size_t i = 0; i < dense.variables; ++i) {
      terms.push_back({LinearVariable(static_cast<int32_t>(i)), dense.rows[r].of[i]});
    }
    program.add_constraint(terms, dense.rows[r].lower, dense.rows[r].upper);
  }
  return program;
}

TEST_CASE("random linear programs agree with a search over all vertices") {
  // Vertices of such small numbers lie within 1000 of the origin. A cost that falls on beyond them
  // falls for ever.
  int optimal = 0, infeasible = 0, unbounded = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const Dense dense = random_dense(random);
    const LinearProgram program = program_of(dense);
    const std::optional<double> least = least_by_vertices(boxed(dense, 1000));
    const LinearSolution solution = solved(program);
    if (!least) {
      ++infeasible;
      REQUIRE(solution.outcome == LinearOutcome::kInfeasible);
    } else if (*least_by_vertices(boxed(dense, 2000)) < *least - 1) {
      ++unbounded;
      REQUIRE(solution.outcome == LinearOutcome::kUnbounded);
    } else {
      ++optimal;
      REQUIRE(solution.outcome == LinearOutcome::kOptimal);
      REQUIRE(solution.cost == Approx(*least).margin(1e-6));
      std::array<double, 3> point{};
      std::copy(solution.values.begin(), solution.values.end(), point.begin());
      REQUIRE(holds(dense, point));
      REQUIRE(solved(program).values == solution.values);  // The same again
    }
  }
  CHECK(optimal > 1000);
  CHECK(infeasible > 300);
  CHECK(unbounded > 100);
}

}  // namespace
}  // namespace spillway::linear_program_test
