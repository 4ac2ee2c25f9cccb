// The policy search and the plans it finds, on shapes: nothing is loaded.
#include "server/plan_search.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/costed_plans.h"

namespace spillway {
namespace {

using test::figure;

// A machine of `memory` bytes whose disk is worth a tenth of its memory's bandwidth.
HardwareProfile machine(double memory, bool own_memory) {
  HardwareProfile hardware;
  hardware.name = "test";
  hardware.compute.kind = own_memory ? "cuda" : "cpu";
  hardware.compute.memory_bytes = hardware.compute.memory_free_bytes = figure(memory);
  hardware.compute.memory_read = figure(own_memory ? 300e9 : 30e9);
  for (const int64_t rows : {1, 16, 64, 512}) {
    const double rate = rows == 1 ? 15e9 : 900e9;
    for (const DType format : {DType::kF16, DType::kBF16, DType::kQ4}) {
      hardware.compute.matrix.push_back({format, rows, 4096, 4096, figure(rate)});
    }
  }
  hardware.compute.prompt_attention = figure(400e9);
  hardware.compute.decode_attention = figure(own_memory ? 200e9 : 20e9);
  const double host = own_memory ? 4 * memory : memory;
  hardware.host = {figure(host), figure(host), figure(30e9), figure(20e9)};
  if (own_memory) hardware.link = HardwareProfile::Link{figure(12e9), figure(12e9), figure(20e9)};
  hardware.disk.free_bytes = figure(2e12);
  hardware.disk.read = {{2 << 20, 32, figure(3e9)}};
  hardware.disk.write = {{2 << 20, 32, figure(2e9)}};
  return hardware;
}

PlanQuestion question(const HardwareProfile& hardware, const std::string& shape) {
  PlanQuestion asked;
  asked.model = shape;
  asked.flags.dummy_weights = true;
  asked.workload = {{128, 32, 0}};
  asked.hardware = &hardware;
  return asked;
}

uint64_t memory_of(const RuntimePlan& plan) {
  return plan.weights.device + plan.kv.device + plan.activations.device + plan.staging_bytes;
}

TEST_CASE("the search is not beaten by a grid") {
  for (const double memory : {2.6e9, 4e9, 9e9}) {
    const HardwareProfile hardware = machine(memory, false);
    PlanQuestion asked = question(hardware, "opt-1.3b");
    int64_t tried = 0;
    const auto found = find_plan(asked, &tried);
    REQUIRE(found.ok());
    CHECK(tried > 10);
    double best = 0;
    for (int64_t block = 1; block <= 1024; block += 1 + block / 8) {
      for (int disk = 0; disk <= 100; disk += 10) {
        EngineFlags flags = asked.flags;
        flags.block = block;
        flags.weights = TierPercent{100 - disk, 0, disk};
        const auto tried_here = evaluate_plan(asked, flags);
        if (tried_here.ok()) best = std::max(best, tried_here->prediction.tokens_per_second());
      }
    }
    INFO("memory " << memory << ", grid " << best);
    REQUIRE(best > 0);
    CHECK(found->prediction.tokens_per_second() > 0.95 * best);
  }
}

TEST_CASE("what is found stays within its budgets and is what its flags say") {
  std::mt19937_64 random(11);
  int fitting = 0;
  for (int round = 0; round < 40; ++round) {
    const bool own_memory = round % 2 == 1;
    const double memory = 0.8e9 + static_cast<double>(random() % 4'000'000'000);
    const HardwareProfile hardware = machine(memory, own_memory);
    PlanQuestion asked = question(hardware, round % 3 == 0 ? "opt-125m" : "opt-1.3b");
    if (round % 4 < 2) asked.flags.format = DType::kQ4;
    const auto found = find_plan(asked);
    if (!found.ok()) {
      CHECK(found.status().code() == Code::kInfeasible);
      continue;
    }
    ++fitting;
    const RuntimePlan& plan = found->runtime->plan();
    INFO("round " << round << ", memory " << memory);
    if (!own_memory) CHECK(memory_of(plan) <= plan.budget_bytes);
    const auto again = evaluate_plan(asked, found->flags);
    REQUIRE(again.ok());
    CHECK(again->runtime->plan().block_sequences == plan.block_sequences);
    CHECK(again->prediction.tokens_per_second() > 0);
  }
  CHECK(fitting > 20);
}

TEST_CASE("what flags name is not searched") {
  const HardwareProfile hardware = machine(4e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.flags.block = 7;
  asked.flags.weights = TierPercent{30, 0, 70};
  const auto found = find_plan(asked);
  REQUIRE(found.ok());
  CHECK(found->flags.block == 7);
  CHECK(*found->flags.weights == TierPercent{30, 0, 70});
  const TierBytes& weights = found->runtime->plan().weights;
  CHECK(static_cast<double>(weights.disk) / static_cast<double>(weights.disk + weights.device) ==
        Approx(0.7).margin(0.01));
}

TEST_CASE("more memory never predicts less") {
  double before = 0;
  for (double memory = 2.2e9; memory < 7e9; memory *= 1.2) {
    const HardwareProfile hardware = machine(memory, false);
    const auto found = find_plan(question(hardware, "opt-1.3b"));
    REQUIRE(found.ok());
    INFO("memory " << memory);
    // What counts as equal may differ by half a per cent.
    CHECK(found->prediction.tokens_per_second() > before * 0.99);
    before = found->prediction.tokens_per_second();
  }
}

TEST_CASE("a machine without room is said to have none") {
  const HardwareProfile hardware = machine(1.2e9, false);
  const auto found = find_plan(question(hardware, "opt-30b"));
  REQUIRE(!found.ok());
  CHECK(found.status().code() == Code::kInfeasible);
  CHECK(std::string(found.status().message()).find("short") != std::string::npos);
}

}  // namespace
}  // namespace spillway
