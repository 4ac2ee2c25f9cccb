// The policy search and the plans it finds, on shapes: nothing is loaded.
#include "scheduler/planning/plan_search.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "scheduler/planning/plan_choices.h"
#include "tests/support/costed_plans.h"
#include "tests/support/test_devices.h"

namespace spillway::plan_search_test {
namespace {

using test::figure;

// A machine of `memory` bytes whose disk is worth a tenth of its memory's bandwidth.
HardwareProfile machine(double memory, bool discrete) {
  HardwareProfile hardware =
      test::simple_hardware({.memory_read = discrete ? 300e9 : 30e9,
                             .prompt_attention = 400e9,
                             .decode_attention = discrete ? 200e9 : 20e9,
                             .disk_read = 3e9,
                             .disk_write = 2e9,
                             .products = {{1, 15e9}, {16, 900e9}, {64, 900e9}, {512, 900e9}},
                             .formats = {Format::kF16, Format::kBF16, Format::kQ4}});
  if (discrete) hardware.compute.kind = "cuda";
  hardware.compute.memory_bytes = hardware.compute.memory_free_bytes = figure(memory);
  const double host = discrete ? 4 * memory : memory;
  hardware.host = {figure(host), figure(host), figure(30e9), figure(20e9)};
  if (discrete) hardware.link = HardwareProfile::Link{figure(12e9), figure(12e9), figure(20e9)};
  hardware.disk.free_bytes = figure(2e12);
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

uint64_t memory_of(const Plan& plan) {
  return plan.weights.device + plan.kv.device + plan.activations.device +
         plan.placement.host_rings.sum();
}

TEST_CASE("attention over a cache in host memory runs where the profile says it is faster") {
  HardwareProfile hardware = machine(6e9, true);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.flags.kv = TierPercent{50, 50, 0};
  asked.flags.block = 64;
  const auto chosen = [&](const char* attention) {
    asked.flags.attention = attention;
    const auto choice = evaluate_plan(asked, asked.flags);
    INFO(choice.status().message());
    REQUIRE(choice.ok());
    CHECK(choice->costed.host_attention == choice->plan->host_attention());
    return choice->costed.host_attention;
  };
  CHECK(chosen("auto"));  // 20 GB/s against a link of 12
  CHECK_FALSE(chosen("device"));
  hardware.link->to_device = figure(25e9);
  CHECK_FALSE(chosen("auto"));
  CHECK(chosen("host"));
  asked.flags.kv = TierPercent{100, 0, 0};
  CHECK_FALSE(chosen("host"));  // There is none.
  hardware = machine(6e9, false);
  asked.flags.kv = TierPercent{50, 50, 0};
  CHECK_FALSE(chosen("host"));  // The CPU computes anyway.
}

TEST_CASE("a stream of requests is planned with a target of prompt tokens where it pays") {
  // Weights and cache are read from a disk while sequences decode; prompts are arithmetic alone.
  const HardwareProfile hardware = machine(2.6e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.workload = {{128, 32, 500}};
  const auto searched = find_plan(asked);
  INFO(searched.status().message());
  REQUIRE(searched.ok());
  const CostedChoice& found = searched.value();
  REQUIRE(found.flags.prefill_target);
  CHECK(*found.flags.prefill_target > 0);
  CHECK(found.plan->prefill_target() == *found.flags.prefill_target);
  asked.flags.prefill_target = 0;
  const CostedChoice without = find_plan(asked).value();
  CHECK(without.plan->prefill_target() == 0);
  CHECK(found.prediction.tokens_per_second() > 1.1 * without.prediction.tokens_per_second());
  // What the search found is what a run under these flags is predicted to be.
  asked.flags = found.flags;
  CHECK(evaluate_plan(asked, found.flags).value().prediction.seconds() ==
        Approx(found.prediction.seconds()));
  // A single block has nothing to spread, and where nothing is read there is nothing to fill.
  asked.flags = question(hardware, "opt-1.3b").flags;
  asked.workload = {{128, 32, 0}};
  CHECK_FALSE(find_plan(asked).value().flags.prefill_target);
}

TEST_CASE("where any number of requests may come, the target is for a stream of them") {
  const HardwareProfile hardware = machine(2.6e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  const CostedChoice block = find_plan(asked).value();
  CHECK_FALSE(block.flags.prefill_target);
  const CostedChoice stream = with_target_for_stream(asked, block);
  REQUIRE(stream.flags.prefill_target);
  CHECK(stream.flags.block == block.flags.block);
  CHECK(stream.flags.weights == block.flags.weights);
  asked.workload[0].count = 8 * block.sequences;
  const auto speed = [&](const CostedChoice& choice) {
    return evaluate_plan(asked, choice.flags).value().prediction.tokens_per_second();
  };
  CHECK(speed(stream) > 1.05 * speed(block));
  // No target goes beyond a limit of the latency.
  asked.workload[0].count = 0;
  asked.latency_seconds = 1;
  CHECK_FALSE(with_target_for_stream(asked, block).flags.prefill_target);
}

TEST_CASE("a long run is predicted from its beginning, its end and some blocks between") {
  const HardwareProfile hardware = machine(2.6e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.workload = {{128, 32, 3000}, {300, 10, 1500}, {20, 60, 4500}};
  asked.flags.block = 64;
  asked.flags.prefill_target = 200;
  const Prediction exact = evaluate_plan(asked, asked.flags).value().prediction;
  CHECK(exact.generated == 3000 * 32 + 1500 * 10 + 4500 * 60);
  const Prediction found = find_plan(asked).value().prediction;
  CHECK(found.generated == exact.generated);
  CHECK(found.seconds() <= 1.001 * exact.seconds());
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

TEST_CASE("beside a device the search finds where the CPU should attend: not beaten by a grid") {
  for (const double memory : {3e9, 5e9}) {
    const HardwareProfile hardware = machine(memory, true);
    PlanQuestion asked = question(hardware, "opt-1.3b");
    asked.workload = {{1024, 256, 0}};
    const auto found = find_plan(asked);
    REQUIRE(found.ok());
    double best = 0;
    for (int64_t block = 1; block <= 512; block += 1 + block / 4) {
      for (int host = 0; host <= 100; host += 20) {
        for (const int kv_host : {0, 50, 100}) {
          EngineFlags flags = asked.flags;
          flags.block = block;
          flags.weights = TierPercent{100 - host, host, 0};
          flags.kv = TierPercent{100 - kv_host, kv_host, 0};
          const auto tried = evaluate_plan(asked, flags);
          if (tried.ok()) best = std::max(best, tried->prediction.tokens_per_second());
        }
      }
    }
    INFO("memory " << memory << ", grid " << best);
    REQUIRE(best > 0);
    CHECK(found->prediction.tokens_per_second() > 0.95 * best);
  }
}

TEST_CASE("requests that name a KV rule are planned with what they keep") {
  const HardwareProfile hardware = machine(5e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.workload = {{512, 128, 500}};
  const auto full = find_plan(asked);
  REQUIRE(full.ok());
  asked.workload[0].kv.kind = KvRuleKind::kH2o;
  const auto named = find_plan(asked);
  REQUIRE(named.ok());
  CHECK(named->sequences > 3 * full->sequences);
  CHECK(named->prediction.tokens_per_second() > full->prediction.tokens_per_second());
  // One in three of them.
  asked.workload = {{512, 128, 334}, {512, 128, 166}};
  asked.workload[1].kv.kind = KvRuleKind::kH2o;
  const auto some = find_plan(asked);
  REQUIRE(some.ok());
  CHECK(some->prediction.tokens_per_second() > full->prediction.tokens_per_second());
  CHECK(some->prediction.tokens_per_second() < named->prediction.tokens_per_second());
}

TEST_CASE("what is found stays within its budgets and is what its flags say") {
  std::mt19937_64 random(11);
  int fitting = 0;
  const int rounds = test::thorough() ? 40 : 12;
  for (int round = 0; round < rounds; ++round) {
    const bool discrete = round % 2 == 1;
    const double memory = 0.8e9 + static_cast<double>(random() % 4'000'000'000);
    const HardwareProfile hardware = machine(memory, discrete);
    PlanQuestion asked = question(hardware, round % 3 == 0 ? "opt-125m" : "opt-1.3b");
    if (round % 4 < 2) asked.flags.format = Format::kQ4;
    const auto found = find_plan(asked);
    if (!found.ok()) {
      CHECK(found.status().code() == Code::kInfeasible);
      continue;
    }
    ++fitting;
    const Plan& plan = *found->plan;
    INFO("round " << round << ", memory " << memory);
    if (!discrete) CHECK(memory_of(plan) <= plan.budget_bytes);
    const auto again = evaluate_plan(asked, found->flags);
    REQUIRE(again.ok());
    CHECK(again->plan->block_sequences() == plan.block_sequences());
    CHECK(again->prediction.tokens_per_second() > 0);
  }
  CHECK(fitting > rounds / 2);
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
  const TierBytes& weights = found->plan->weights;
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

TEST_CASE("more memory of either kind never predicts less, whatever the plan", "[slow]") {
  constexpr uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  int compared = 0;
  const int rounds = test::thorough() ? 24 : 6;
  for (int round = 0; round < rounds; ++round) {
    const bool discrete = round % 2 == 1;
    HardwareProfile hardware =
        machine(1.5e9 + static_cast<double>(random() % 4'000'000'000), discrete);
    PlanQuestion asked = question(hardware, round % 5 == 0 ? "opt-125m" : "opt-1.3b");
    asked.workload = {{static_cast<int64_t>(1 + random() % 1000),
                       static_cast<int64_t>(1 + random() % 500),
                       round % 3 == 0 ? 0 : static_cast<int64_t>(1 + random() % 300)}};
    asked.lengths_known = random() % 2 == 0;
    if (round % 4 < 2) asked.flags.format = Format::kQ4;
    asked.flags.kv_rule = round % 3 == 1 ? "h2o" : round % 3 == 2 ? "window" : "full";
    const auto before = find_plan(asked);
    if (!before.ok()) continue;
    const double more = 1 + static_cast<double>(random() % 100) / 100;
    const auto grow = [&](Figure* figure) { *figure = test::figure(figure->value * more); };
    const bool device = discrete && random() % 2 == 0;
    grow(device ? &hardware.compute.memory_bytes : &hardware.host.memory_bytes);
    grow(device ? &hardware.compute.memory_free_bytes : &hardware.host.memory_free_bytes);
    if (!discrete) {
      hardware.compute.memory_bytes = hardware.host.memory_bytes;
      hardware.compute.memory_free_bytes = hardware.host.memory_free_bytes;
    }
    const auto after = find_plan(asked);
    INFO("seed " << kSeed << ", round " << round << ", " << more << " times");
    REQUIRE(after.ok());
    CHECK(after->prediction.tokens_per_second() > 0.99 * before->prediction.tokens_per_second());
    ++compared;
  }
  CHECK(compared > rounds / 2);
}

TEST_CASE("under a latency limit the search is not beaten by a grid") {
  for (const bool discrete : {false, true}) {
    const HardwareProfile hardware = machine(3e9, discrete);
    PlanQuestion asked = question(hardware, "opt-1.3b");
    const auto any = find_plan(asked);
    REQUIRE(any.ok());
    for (const double part : {0.05, 0.2, 0.7}) {
      asked.latency_seconds = part * any->latency_seconds;
      const auto found = find_plan(asked);
      double best = 0;
      for (int64_t block = 1; block <= 1024; block += 1 + block / 8) {
        for (int away = 0; away <= 100; away += 20) {
          EngineFlags flags = asked.flags;
          flags.block = block;
          const TierPercent percent = {100 - away, discrete ? away : 0, discrete ? 0 : away};
          flags.weights = percent;
          const auto tried = evaluate_plan(asked, flags);
          if (!tried.ok() || tried->latency_seconds > asked.latency_seconds) continue;
          best = std::max(best, tried->prediction.tokens_per_second());
        }
      }
      INFO("own memory " << discrete << ", limit " << asked.latency_seconds << ", grid " << best);
      if (!found.ok()) {
        CHECK(found.status().code() == Code::kInfeasible);
        CHECK(best == 0);
        continue;
      }
      CHECK(found->latency_seconds <= asked.latency_seconds);
      CHECK(found->prediction.tokens_per_second() > 0.95 * best);
      CHECK(found->prediction.tokens_per_second() <= any->prediction.tokens_per_second() * 1.0051);
    }
  }
}

TEST_CASE("a latency that no plan keeps names one that fits") {
  const HardwareProfile hardware = machine(3e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.latency_seconds = 0.001;
  const auto found = find_plan(asked);
  REQUIRE(!found.ok());
  CHECK(found.status().code() == Code::kInfeasible);
  const std::string message(found.status().message());
  INFO(message);
  CHECK(message.find("--latency 0.001: the fastest answer takes ") != std::string::npos);
  CHECK(message.find(" s with --block 1, at ") != std::string::npos);
  const std::string flag = "; --latency ";
  const size_t at = message.find(flag);
  REQUIRE(at != std::string::npos);
  asked.latency_seconds = std::strtod(message.c_str() + at + flag.size(), nullptr);
  const auto fits = find_plan(asked);
  REQUIRE(fits.ok());
  CHECK(fits->latency_seconds <= asked.latency_seconds);
  // Rounded up to three digits and not further.
  CHECK(fits->latency_seconds > asked.latency_seconds * 0.99);
}

TEST_CASE("the latency of a plan is what a full block takes") {
  const HardwareProfile hardware = machine(9e9, false);
  PlanQuestion asked = question(hardware, "opt-125m");
  EngineFlags flags = asked.flags;
  flags.block = 8;
  const auto block = evaluate_plan(asked, flags);
  REQUIRE(block.ok());
  CHECK(block->sequences == 8);
  CHECK(block->latency_seconds == Approx(block->prediction.seconds()));
  // However many follow, a block takes what it takes; fewer requests than a block take less.
  asked.workload[0].count = 80;
  const auto ten = evaluate_plan(asked, flags);
  REQUIRE(ten.ok());
  CHECK(ten->latency_seconds == Approx(block->latency_seconds));
  CHECK(ten->prediction.seconds() > 5 * block->latency_seconds);
  asked.workload[0].count = 2;
  const auto two = evaluate_plan(asked, flags);
  REQUIRE(two.ok());
  CHECK(two->sequences == 2);
  CHECK(two->latency_seconds < block->latency_seconds);
  // Of many lengths the longest is always in the block.
  asked.workload = {{16, 4, 1000}, {128, 32, 1}};
  flags.block = 1;
  const auto mixed = evaluate_plan(asked, flags);
  asked.workload = {{128, 32, 1}};
  const auto longest = evaluate_plan(asked, flags);
  REQUIRE(mixed.ok());
  REQUIRE(longest.ok());
  // (A row's bytes are those of the group with most, so they differ by rounding.)
  CHECK(mixed->latency_seconds == Approx(longest->latency_seconds).epsilon(0.03));
}

TEST_CASE("nothing that was looked at beats the frontier") {
  for (const bool discrete : {false, true}) {
    const HardwareProfile hardware = machine(2.5e9, discrete);
    PlanQuestion asked = question(hardware, "opt-1.3b");
    asked.frontier = true;
    const auto found = find_plans(asked);
    REQUIRE(found.ok());
    REQUIRE(found->frontier.size() >= 3);
    const auto& frontier = found->frontier;
    for (size_t i = 0; i < frontier.size(); ++i) {
      INFO("own memory " << discrete << ", plan " << i);
      // What its flags say.
      const auto again = evaluate_plan(asked, frontier[i].flags);
      REQUIRE(again.ok());
      CHECK(again->latency_seconds == Approx(frontier[i].latency_seconds));
      CHECK(again->prediction.tokens_per_second() ==
            Approx(frontier[i].prediction.tokens_per_second()));
      CHECK(again->sequences == *frontier[i].flags.block);
      if (i == 0) continue;
      CHECK(frontier[i].latency_seconds > frontier[i - 1].latency_seconds);
      CHECK(frontier[i].prediction.tokens_per_second() >
            1.004 * frontier[i - 1].prediction.tokens_per_second());
      // A limit between two of them has the first's throughput at least.
      asked.latency_seconds = frontier[i].latency_seconds * 0.999;
      const auto limited = find_plan(asked);
      asked.latency_seconds = 0;
      REQUIRE(limited.ok());
      CHECK(limited->prediction.tokens_per_second() >
            0.98 * frontier[i - 1].prediction.tokens_per_second());
    }
    CHECK(found->best.prediction.tokens_per_second() ==
          Approx(frontier.back().prediction.tokens_per_second()).epsilon(0.011));
  }
}

TEST_CASE("of plans that are as fast the one with larger micro-batches is chosen") {
  // The link limits, so that for most sizes of micro-batches the same is predicted.
  HardwareProfile hardware = machine(1.5e9, true);
  hardware.link->to_device = figure(1e9);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.flags.block = 64;
  asked.flags.kv = TierPercent{0, 100, 0};
  asked.flags.attention = "host";
  const auto found = find_plan(asked);
  REQUIRE(found.ok());
  REQUIRE(found->costed.host_attention);
  int equal = 0;
  for (const int64_t size : {1, 2, 4, 8, 16, 32}) {
    EngineFlags flags = found->flags;
    flags.micro_batch = size;
    const auto other = evaluate_plan(asked, flags);
    REQUIRE(other.ok());
    const double speed = other->prediction.tokens_per_second();
    CHECK(speed < 1.006 * found->prediction.tokens_per_second());
    if (speed < 0.996 * found->prediction.tokens_per_second()) continue;
    ++equal;
    CHECK_FALSE(better(other.value(), found.value()));
    CHECK(found->flags.micro_batch.value_or(64) >= size);
  }
  CHECK(equal > 2);
}

TEST_CASE("a micro-batch is chosen only where a machine is faster with it") {
  // Weights come over a slow link, so a block must be large.
  HardwareProfile hardware = machine(1.5e9, true);
  hardware.link->to_device = figure(1e9);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  asked.workload = {{16, 1, 0}};
  const auto usual = find_plan(asked);
  REQUIRE(usual.ok());
  CHECK(*usual->flags.block > 32);
  CHECK(!usual->flags.micro_batch);
  // A thousand rows at a time are slow here.
  for (MatrixFigure& figure : hardware.compute.matrix) {
    if (figure.rows == 512) figure.rate = test::figure(300e9);
  }
  asked.flags.block = 64;
  const auto found = find_plan(asked);
  REQUIRE(found.ok());
  REQUIRE(found->flags.micro_batch);
  CHECK(*found->flags.micro_batch <= 8);
  EngineFlags flags = found->flags;
  flags.micro_batch.reset();
  const auto whole = evaluate_plan(asked, flags);
  REQUIRE(whole.ok());
  CHECK(found->prediction.tokens_per_second() > 1.1 * whole->prediction.tokens_per_second());
}

TEST_CASE("formats are searched only when asked for") {
  const HardwareProfile hardware = machine(2.4e9, false);
  PlanQuestion asked = question(hardware, "opt-1.3b");
  const auto usual = find_plan(asked);
  REQUIRE(usual.ok());
  CHECK_FALSE(is_quantized(usual->costed.format));
  asked.search_formats = true;
  const auto found = find_plan(asked);
  REQUIRE(found.ok());
  // A quarter of the bytes fits in memory, and nothing waits for the disk any more.
  CHECK(found->flags.format == Format::kQ4);
  CHECK(found->prediction.tokens_per_second() > usual->prediction.tokens_per_second());
  // Twice the memory has room for 8 bits, which are taken where their products are faster.
  HardwareProfile wider = machine(4.8e9, false);
  std::vector<MatrixFigure>& figures = wider.compute.matrix;
  for (size_t i = 0, count = figures.size(); i < count; ++i) {
    if (figures[i].format != Format::kQ4) continue;
    figures.push_back(figures[i]);
    figures.back().format = Format::kQ8;
    figures[i].rate.value /= 2;
  }
  PlanQuestion in_wider = asked;
  in_wider.hardware = &wider;
  const auto eight = find_plan(in_wider);
  REQUIRE(eight.ok());
  CHECK(eight->flags.format == Format::kQ8);
  asked.flags.format = usual->costed.format;
  asked.flags.kv_format = usual->costed.kv_format;
  const auto named = find_plan(asked);
  REQUIRE(named.ok());
  CHECK(named->prediction.tokens_per_second() == Approx(usual->prediction.tokens_per_second()));
}

TEST_CASE("activations leave a device that is too small for them") {
  HardwareProfile hardware = machine(2e9, true);
  hardware.host.memory_bytes = hardware.host.memory_free_bytes = figure(40e9);
  PlanQuestion asked = question(hardware, "opt-125m");
  asked.workload = {{8, 8, 0}};
  // So many rows in a decode step are more than the rings through which they pass.
  asked.flags.block = 16384;
  PlanQuestion staying = asked;
  staying.flags.activations = TierPercent{100, 0, 0};
  for (uint64_t device = 1'100'000'000;; device -= 4'000'000) {
    REQUIRE(device > 800'000'000);
    asked.flags.device_memory_bytes = staying.flags.device_memory_bytes = device;
    if (find_plan(staying).ok()) continue;
    INFO("device memory " << device);
    const auto found = find_plan(asked);
    INFO(found.status().message());
    REQUIRE(found.ok());
    CHECK((*found->flags.activations)[0] < 100);
    const Plan& plan = *found->plan;
    CHECK(plan.activations.host + plan.activations.disk > 10'000'000);
    CHECK(plan.weights.device + plan.kv.device + plan.activations.device +
              plan.placement.device_rings.sum() <=
          device);
    break;
  }
}

TEST_CASE("a micro-batch larger than all there is is refused") {
  const HardwareProfile hardware = machine(9e9, false);
  PlanQuestion asked = question(hardware, "opt-125m");
  asked.workload[0].count = 4;
  asked.flags.micro_batch = 8;
  const auto found = find_plan(asked);
  REQUIRE(!found.ok());
  CHECK(found.status().code() == Code::kInvalidArgument);
}

TEST_CASE("a machine without room is said to have none") {
  const HardwareProfile hardware = machine(1.2e9, false);
  const auto found = find_plan(question(hardware, "opt-30b"));
  REQUIRE(!found.ok());
  CHECK(found.status().code() == Code::kInfeasible);
  CHECK(std::string(found.status().message()).find("short") != std::string::npos);
}

}  // namespace
}  // namespace spillway::plan_search_test
