// FlexGen's released cost model: the numbers that its own program prints.
#include "policy/flexgen/flexgen_cost.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "offload/config_files.h"
#include "policy/flexgen/flexgen_search.h"

namespace spillway::flexgen_cost_test {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

FlexgenProblem problem_of(const std::string& model, int64_t prompt = 512, int64_t new_tokens = 32) {
  const auto hardware = find_flexgen_hardware();
  INFO(hardware.status().message());
  REQUIRE(hardware.ok());
  const auto shape = find_model_shape(model);
  REQUIRE(shape.ok());
  FlexgenProblem problem{shape.value(), hardware.value(), prompt, new_tokens, false};
  REQUIRE(validate(problem).ok());
  return problem;
}

FlexgenPins pins_of(double weights_device, double weights_host, double cache_device,
                    double cache_host, double hidden_device, double hidden_host) {
  return {{weights_device / 100, weights_host / 100},
          {cache_device / 100, cache_host / 100},
          {hidden_device / 100, hidden_host / 100}};
}

// The released program's relaxation for a placement that is given.
FlexgenLimits relaxed() {
  return {{16 * kGiB, 200 * kGiB, 1500 * kGiB}, {1.2, 1.2, 1.2}};
}

// Both ways to the same number: through the linear program, and directly.
FlexgenCost pinned(const FlexgenProblem& problem, const FlexgenBlock& block,
                   const FlexgenPins& pins) {
  const auto choice = flexgen_placement(problem, block, pins, relaxed());
  INFO(choice.status().message());
  REQUIRE(choice.ok());
  const auto kind = [](const FlexgenPins::Kind& k) {
    return PerTier{*k.device, *k.host, 1 - *k.device - *k.host};
  };
  const FlexgenCost cost =
      flexgen_cost(problem, block, {kind(pins.weights), kind(pins.cache), kind(pins.hidden)});
  CHECK(choice.value().cost.total_seconds == Approx(cost.total_seconds).epsilon(1e-9));
  CHECK(choice.value().cost.prefill_peak_bytes.device ==
        Approx(cost.prefill_peak_bytes.device).epsilon(1e-9));
  return cost;
}

Approx near(double value) {
  return Approx(value).epsilon(1e-4);
}

TEST_CASE("FlexGen's model of OPT-30B streamed from the host") {
  const FlexgenCost cost = pinned(problem_of("opt-30b"), {48, 3}, pins_of(20, 80, 0, 100, 0, 100));
  CHECK(cost.prefill_seconds == near(210.6704));
  CHECK(cost.decode_seconds == near(435.0937));
  CHECK(cost.total_seconds == near(645.76408));
  CHECK(cost.tokens_per_second == near(7.1357));

  // As printed, four digits after the point.
  CHECK(cost.prefill.host_to_device == Approx(0.1476).margin(5e-5));
  CHECK(cost.prefill.device_to_host == Approx(2.2378).margin(5e-5));
  CHECK(cost.prefill.disk_to_host == 0);
  CHECK(cost.prefill.host_to_disk == 0);
  CHECK(cost.prefill.device_compute == Approx(4.3890).margin(5e-5));
  CHECK(cost.decode.host_to_device == Approx(0.0714).margin(5e-5));
  CHECK(cost.decode.device_to_host == Approx(0.0004).margin(5e-5));
  CHECK(cost.decode.device_compute + cost.decode.host_compute == Approx(0.2210).margin(5e-5));
  const double rate = 0.0123e12 * (1 - 0.0328 * std::log2(64.0 / 48));
  CHECK(cost.decode.host_compute == Approx(4.0 * 144 * 528 * 7168 / rate).epsilon(1e-9));
  CHECK(cost.prefill_peak_bytes.device / kGiB == Approx(18.769).margin(5e-4));
  CHECK(cost.decode_peak_bytes.device / kGiB == Approx(12.870).margin(5e-4));
  CHECK(cost.prefill_peak_bytes.host / kGiB == Approx(140.831).margin(5e-4));
  CHECK(cost.decode_peak_bytes.host / kGiB == Approx(144.512).margin(5e-4));
  CHECK(cost.prefill_peak_bytes.disk == 0);
}

TEST_CASE("FlexGen's model of OPT-6.7B on the device alone") {
  const FlexgenCost cost = pinned(problem_of("opt-6.7b"), {2, 1}, pins_of(100, 0, 100, 0, 100, 0));
  CHECK(cost.prefill_seconds == Approx(0.6488).margin(5e-5));
  CHECK(cost.decode_seconds == Approx(0.4030).margin(5e-5));
  CHECK(cost.tokens_per_second == near(60.8481));
  CHECK(cost.decode.host_compute == 0);
  CHECK(cost.decode.host_to_device == 0);
  CHECK(cost.prefill_peak_bytes.device / kGiB == Approx(12.672).margin(5e-4));
  CHECK(cost.prefill_peak_bytes.host == 0);
}

TEST_CASE("FlexGen's model of OPT-175B from the disk") {
  const FlexgenCost cost = pinned(problem_of("opt-175b"), {32, 8}, pins_of(0, 50, 0, 0, 0, 100));
  CHECK(cost.prefill_seconds == near(2178.6042));
  CHECK(cost.decode_seconds == near(50886.9365));
  CHECK(cost.tokens_per_second == near(0.15437));
  CHECK(cost.tokens_per_second == Approx(0.1544).margin(5e-5));
  CHECK(cost.prefill.disk_to_host == Approx(3.5677).margin(5e-5));
  CHECK(cost.prefill.host_to_disk == Approx(8.0586).margin(5e-5));
  CHECK(cost.decode.disk_to_host == Approx(16.8368).margin(5e-5));
  CHECK(cost.decode.host_to_disk == Approx(0.0058).margin(5e-5));
  CHECK(cost.decode_peak_bytes.host / kGiB == Approx(165.291).margin(5e-4));
  CHECK(cost.decode_peak_bytes.disk / kGiB == Approx(774.000).margin(5e-4));
}

TEST_CASE("host attention loses speed with small micro-batches and hidden sizes") {
  // The same 64 sequences; only the share of the full rate differs.
  const auto host_seconds = [](const char* model, int64_t micro_batch) {
    const FlexgenPlacement placement = {{1, 0, 0}, {0, 1, 0}, {1, 0, 0}};
    return flexgen_cost(problem_of(model), {micro_batch, 64 / micro_batch}, placement)
        .decode.host_compute;
  };
  const double large = host_seconds("opt-6.7b", 64);  // Hidden 4096: the full rate
  CHECK(large == Approx(4.0 * 64 * 528 * 4096 / 0.0123e12).epsilon(1e-9));
  CHECK(host_seconds("opt-6.7b", 16) == Approx(large / (1 - 2 * 0.0328)).epsilon(1e-9));
  CHECK(host_seconds("opt-1.3b", 64) == Approx(large / 2 / (1 - 0.0621)).epsilon(1e-9));
  CHECK(host_seconds("opt-1.3b", 8) ==
        Approx(large / 2 / (1 + 0.0168 * 3 - 0.0328 * 3 - 0.0621)).epsilon(1e-9));
  CHECK(host_seconds("opt-30b", 64) == Approx(large * 7168 / 4096).epsilon(1e-9));

  FlexgenProblem lossy = problem_of("opt-6.7b");
  lossy.hardware.loss_per_halved_micro_batch = 0.5;  // Would be 1 - 6 / 2
  const FlexgenCost cost = flexgen_cost(lossy, {1, 64}, {{1, 0, 0}, {0, 1, 0}, {1, 0, 0}});
  CHECK(cost.decode.host_compute == Approx(large * 10).epsilon(1e-9));
}

TEST_CASE("FlexGen's search finds what the released program finds") {
  FlexgenSearch search;
  search.limits.memory_bytes = {16 * kGiB, 200 * kGiB, 1500 * kGiB};
  const auto found = flexgen_search(problem_of("opt-30b"), search);
  REQUIRE(found.ok());
  const FlexgenChoice& choice = found.value();
  CHECK(choice.cost.tokens_per_second == Approx(7.09).margin(0.005));
  CHECK(choice.cost.total_seconds == near(721.66259));
  CHECK(choice.block.micro_batch == 32);
  CHECK(choice.block.micro_batches == 5);
  CHECK(choice.placement.weights.device == Approx(0.12428276).margin(1e-6));
  CHECK(choice.placement.weights.host == Approx(0.77809922).margin(1e-6));
  CHECK(choice.placement.cache.host == 1);
  CHECK(choice.placement.hidden.host == 1);
  CHECK(choice.cost.prefill_peak_bytes.device == Approx(0.8 * 16 * kGiB).epsilon(1e-6));
}

TEST_CASE("a pinned share or block is kept by the search") {
  FlexgenSearch search;
  search.limits.memory_bytes = {16 * kGiB, 200 * kGiB, 1500 * kGiB};
  search.micro_batch = 24;
  search.micro_batches = 4;
  search.pins.weights.device = 0.05;
  const auto found = flexgen_search(problem_of("opt-30b"), search);
  REQUIRE(found.ok());
  CHECK(found.value().block.micro_batch == 24);
  CHECK(found.value().block.micro_batches == 4);
  CHECK(found.value().placement.weights.device == 0.05);
}

// What the released program (with its relaxation of 0.8) answers to one block.
struct Released {
  const char* model;
  int64_t prompt, new_tokens;
  double device_gib, host_gib, disk_gib;
  FlexgenBlock block;
  std::array<double, 6> pins;  // Per cent of weights, cache, hidden on device and host; -1: free
  bool compressed;
  double tokens_per_second;  // 0: infeasible
};

constexpr Released kReleased[] = {
    {"opt-30b", 512, 128, 16, 200, 3000, {64, 1}, {-1, -1, -1, -1, -1, -1}, false, 6.57748416},
    {"opt-175b", 1, 2, 24, 200, 1500, {3, 1}, {0, 0, -1, -1, 0, -1}, false, 0.00412002031},
    {"opt-125m", 512, 8, 16, 64, 3000, {16, 1}, {10, 0, -1, -1, 100, -1}, true, 195.459464},
    {"opt-1.3b", 64, 128, 24, 16, 3000, {32, 1}, {20, 80, 30, -1, -1, -1}, true, 299.113948},
    {"opt-6.7b", 64, 1, 16, 64, 3000, {64, 8}, {20, -1, -1, -1, -1, -1}, false, 25.6147823},
    {"opt-66b", 512, 32, 16, 200, 3000, {8, 2}, {-1, -1, -1, -1, -1, -1}, false, 1.29639309},
    {"opt-125m", 2016, 33, 16, 16, 1500, {64, 8}, {100, 0, -1, -1, -1, -1}, false, 11.9234585},
    {"opt-66b", 1000, 32, 16, 64, 3000, {4, 2}, {0, 0, -1, -1, -1, -1}, false, 0.0286334004},
    {"opt-6.7b", 64, 33, 24, 200, 3000, {8, 8}, {10, 0, 30, -1, 0, -1}, false, 2.57652213},
    {"opt-30b", 1000, 128, 16, 200, 1500, {3, 3}, {0, -1, -1, -1, 0, -1}, true, 5.31663467},
    {"opt-1.3b", 1000, 1, 16, 16, 3000, {4, 20}, {50, -1, 30, 0, -1, -1}, false, 3.28669837},
    {"opt-13b", 64, 32, 8, 200, 1, {64, 3}, {-1, -1, -1, -1, -1, -1}, false, 48.7958992},
    {"opt-1.3b", 2016, 128, 24, 16, 1, {4, 3}, {20, 0, 30, 0, -1, 0}, false, 0},
    {"opt-175b", 1000, 8, 16, 200, 1, {48, 1}, {-1, -1, -1, -1, -1, -1}, false, 0},
    {"opt-30b", 1000, 32, 24, 200, 1500, {48, 2}, {50, -1, 100, -1, -1, -1}, false, 0},
};

TEST_CASE("FlexGen's placements are as fast as the released program's") {
  for (const Released& r : kReleased) {
    INFO(r.model << " " << r.prompt << "+" << r.new_tokens << " " << r.block.micro_batch << " x "
                 << r.block.micro_batches);
    FlexgenProblem problem = problem_of(r.model, r.prompt, r.new_tokens);
    problem.compressed_weights = r.compressed;
    const auto pin = [&](size_t i) {
      return r.pins[i] < 0 ? std::nullopt : std::optional(r.pins[i] / 100);
    };
    const FlexgenPins pins = {{pin(0), pin(1)}, {pin(2), pin(3)}, {pin(4), pin(5)}};
    const FlexgenLimits limits = {{r.device_gib * kGiB, r.host_gib * kGiB, r.disk_gib * kGiB}};
    const auto choice = flexgen_placement(problem, r.block, pins, limits);
    if (r.tokens_per_second == 0) {
      CHECK(choice.status().code() == Code::kInfeasible);
      continue;
    }
    REQUIRE(choice.ok());
    const FlexgenCost& cost = choice.value().cost;
    CHECK(cost.tokens_per_second == Approx(r.tokens_per_second).epsilon(1e-5));
    for (const PerTier& peak : {cost.prefill_peak_bytes, cost.decode_peak_bytes}) {
      CHECK(peak.device <= 0.8 * limits.memory_bytes.device * (1 + 1e-6));
      CHECK(peak.host <= 0.8 * limits.memory_bytes.host * (1 + 1e-6));
      CHECK(peak.disk <= 0.8 * limits.memory_bytes.disk * (1 + 1e-6));
    }
    const FlexgenPlacement& placement = choice.value().placement;
    for (const PerTier& kind : {placement.weights, placement.cache, placement.hidden}) {
      CHECK(kind.device + kind.host + kind.disk == Approx(1));
    }
    CHECK(placement.hidden.disk == 0);
  }
}

TEST_CASE("without limits FlexGen's model puts everything where it is fastest") {
  const auto choice =
      flexgen_placement(problem_of("opt-1.3b"), {4, 2}, {}, {{kInfinity, kInfinity, kInfinity}});
  REQUIRE(choice.ok());
  CHECK(choice.value().placement.weights.device == 1);
  CHECK(choice.value().placement.hidden.disk == 0);
  CHECK(choice.value().cost.decode.disk_to_host == 0);
  CHECK(choice.value().cost.decode.host_to_device == Approx(0).margin(1e-9));
}

TEST_CASE("what FlexGen's model cannot place is infeasible, with its sizes") {
  const FlexgenProblem problem = problem_of("opt-30b");
  FlexgenSearch search;
  search.limits.memory_bytes = {16 * kGiB, 20 * kGiB, 0};
  const Status status = flexgen_search(problem, search).status();
  CHECK(status.code() == Code::kInfeasible);
  CHECK(status.message() ==
        "a block of 1 x 1 sequences fits no way into 12.8 GiB device, 16.0 GiB host and 0 B disk "
        "memory");

  const auto refused = [&](const FlexgenPins& pins) {
    return flexgen_placement(problem, {1, 1}, pins, relaxed()).status().code();
  };
  CHECK(refused(pins_of(60, 60, 0, 100, 0, 100)) == Code::kInfeasible);  // More than all
  CHECK(refused(pins_of(0, 100, 0, 100, 0, 90)) == Code::kInfeasible);   // Hidden on disk
  CHECK(refused(pins_of(0, 100, 0, 100, 0, 100)) == Code::kOk);
}

TEST_CASE("FlexGen's model refuses what it does not describe") {
  FlexgenProblem problem = problem_of("opt-125m");
  problem.new_tokens = 0;
  CHECK(validate(problem).message() == "a prompt and an answer have 1 to 1048576 tokens, not 0");
  problem.new_tokens = 1;
  CHECK(validate(problem).ok());
  problem.prompt_tokens = (1 << 20) + 1;
  CHECK(validate(problem).code() == Code::kInvalidArgument);
  problem.prompt_tokens = 1;
  problem.shape.family = "llama";
  CHECK(validate(problem).code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::flexgen_cost_test
