// FlexGen's loop on paper, beside what its authors measured.
#include "policy/flexgen/flexgen_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "offload/config_files.h"

namespace spillway::flexgen_schedule_test {
namespace {

double at(const std::vector<SimulatedRun::Part>& parts, const std::string& name) {
  for (const auto& part : parts) {
    if (part.name == name) return part.seconds;
  }
  return 0;
}

HardwareProfile t4() {
  return find_hardware_profile("t4-16gb").value();
}

PerTier percent(double device, double host) {
  return {device / 100, host / 100, 1 - device / 100 - host / 100};
}

FlexgenRun run_of(const std::string& model, int64_t prompt, FlexgenBlock block, PerTier weights,
                  PerTier cache, PerTier hidden) {
  FlexgenRun run;
  run.shape = find_model_shape(model).value();
  run.prompt_tokens = prompt;
  run.new_tokens = 32;
  run.block = block;
  run.placement = {weights, cache, hidden};
  run.pinned_weights = weights.disk == 0;
  return run;
}

const PerTier kDevice = percent(100, 0), kHost = percent(0, 100), kDisk = percent(0, 0);

TEST_CASE("where FlexGen's shares really put the weights") {
  const auto share = [](double device, double host) {
    const PerTier bytes =
        flexgen_weight_bytes(run_of("opt-30b", 512, {1, 1}, percent(device, host), kHost, kHost));
    const double all = bytes.device + bytes.host + bytes.disk;
    CHECK(all == Approx(2 * 30.3e9).epsilon(0.02));
    return PerTier{bytes.device / all, bytes.host / all, bytes.disk / all};
  };
  // One block of twelve, less what the embeddings are.
  CHECK(share(20, 80).device == Approx(1.0 / 12).epsilon(0.03));
  CHECK(share(4, 96).device < 0.001);
  CHECK(share(100, 0).device == 1);
  CHECK(share(0, 50).disk == Approx(0.5).epsilon(0.03));
}

TEST_CASE("all on the device, one thing after another: what arithmetic takes") {
  FlexgenRun run = run_of("opt-6.7b", 512, {2, 1}, kDevice, kDevice, kDevice);
  run.overlap = false;
  run.new_tokens = 1;
  const SimulatedRun found = simulate_flexgen(run, t4()).value();
  // 32 layers of 12 x 4096^2 and a head of 50272 x 4096, for 1,024 rows at 21.24 TFLOP/s; scores
  // at 9.97.
  const double products = 2 * 1024 * (32 * 12 * 4096.0 * 4096 + 50272.0 * 4096) / 21.24e12;
  const double scores = 32 * 4 * 512.0 * 512 * 4096 * 2 / 9.97e12;
  CHECK(found.seconds() == Approx(products + scores).epsilon(1e-6));
  CHECK(found.generated == 2);
  CHECK(found.waits.empty());
}

TEST_CASE("a barrier after every step: nothing of the next layer begins before") {
  // So little arithmetic that only the weights count: each is on its way alone, every token.
  const FlexgenRun run = run_of("opt-30b", 1, {1, 2}, kHost, kDevice, kDevice);
  HardwareProfile hardware = t4();
  for (MatrixFigure& figure : hardware.compute.matrix) figure.rate.value *= 1e6;
  hardware.compute.memory_read.value *= 1e6;
  hardware.compute.prompt_attention.value *= 1e6;
  const SimulatedRun found = simulate_flexgen(run, hardware).value();
  const PerTier bytes = flexgen_weight_bytes(run);
  CHECK(found.seconds() == Approx(32 * bytes.host / 12e9).epsilon(0.001));
  CHECK(at(found.waits, "weights") == Approx(found.seconds()).epsilon(0.01));
}

TEST_CASE("FlexGen's schedule: bounds, overlap and samples") {
  FlexgenRun run = run_of("opt-1.3b", 64, {4, 3}, percent(20, 60), percent(0, 50), kHost);
  run.new_tokens = 12;
  const SimulatedRun overlapped = simulate_flexgen(run, t4()).value();
  for (const auto& part : overlapped.resources) CHECK(part.seconds <= overlapped.seconds());
  double sum = 0;
  run.overlap = false;
  const SimulatedRun serial = simulate_flexgen(run, t4()).value();
  for (const auto& part : serial.resources) sum += part.seconds;
  CHECK(serial.seconds() == Approx(sum));
  CHECK(overlapped.seconds() < serial.seconds());
  // Of many tokens some stand for the others: work grows evenly.
  run.overlap = true;
  run.new_tokens = 33;
  const double whole = simulate_flexgen(run, t4())->decode_seconds;
  run.new_tokens = 129;
  const SimulatedRun longer = simulate_flexgen(run, t4()).value();
  CHECK(longer.sweeps_simulated == 33);
  CHECK(longer.generated == 12 * 129);
  CHECK(longer.decode_seconds > 4 * whole);
  CHECK(longer.decode_seconds < 8 * whole);
}

// What its authors measured: arXiv 2303.06865's table for 512 + 32 and 1024 + 32 tokens, and beside
// the policies of its benchmark suite (benchmark/flexllmgen/bench_suite.py) for 256 + 32.
struct PublishedRow {
  const char* model;
  int64_t prompt;
  FlexgenBlock block;
  PerTier weights, cache, hidden;
  double measured;  // Tokens/s
  // The first rows were seen while the profile was made: its host memory was raised from 50 to 102
  // GB/s for them. For the others no assumption was made or changed.
  bool seen;
};
const PublishedRow kPublished[] = {
    {"opt-6.7b", 512, {2, 1}, kDevice, kDevice, kDevice, 25.26, true},
    {"opt-30b", 512, {48, 3}, percent(20, 80), kHost, kHost, 7.32, true},
    {"opt-30b", 1024, {20, 4}, percent(4, 96), kHost, kHost, 3.50, true},
    {"opt-175b", 512, {32, 8}, percent(0, 50), kDisk, kHost, 0.69, true},
    {"opt-6.7b", 256, {4, 1}, kDevice, kDevice, kDevice, 53.29, false},
    {"opt-30b", 256, {160, 2}, percent(10, 90), kHost, kHost, 16.01, false},
    {"opt-175b", 256, {64, 8}, percent(0, 50), kDisk, kHost, 1.36, false},
};

FlexgenRun published_run(const PublishedRow& row) {
  FlexgenRun run = run_of(row.model, row.prompt, row.block, row.weights, row.cache, row.hidden);
  run.overlap = row.block.micro_batches > 1;  // The suite's --overlap False
  return run;
}

double tokens_of(const FlexgenRun& run) {
  return static_cast<double>(run.block.sequences() * run.new_tokens);
}

// Bytes that a run must read from disk, by hand: its weights in each of 32 sweeps, its cache in
// each decode step.
double bytes_from_disk(const FlexgenRun& run) {
  double cache = 0;
  for (int64_t step = 1; step < run.new_tokens; ++step) {
    cache += 4.0 * static_cast<double>(run.shape.hidden * run.shape.layers) *
             static_cast<double>((run.prompt_tokens + step) * run.block.sequences());
  }
  return static_cast<double>(run.new_tokens) * flexgen_weight_bytes(run).disk +
         run.placement.cache.disk * cache;
}

TEST_CASE("FlexGen's published policies on its machine, beside what its authors measured") {
  // The share of docs/benchmarks' other predictions, not of these rows.
  constexpr double kTolerance = 0.15;
  constexpr double kDiskRate = 2e9;  // Of the paper
  for (const PublishedRow& row : kPublished) {
    INFO(row.model << ", " << row.prompt << (row.seen ? ", seen" : ", not seen"));
    FlexgenRun run = published_run(row);
    run.fewer_batches = run.overlap;  // ... and --debug fewer_batch
    const double theirs = simulate_flexgen(run, t4())->tokens_per_second();
    if (run.placement.cache.disk == 0) {
      CHECK(theirs == Approx(row.measured).epsilon(kTolerance));
      continue;
    }
    // By the paper's own rate of its disk, reading alone takes longer than what it measured in all:
    // no schedule comes near, so these rows say nothing about ours but that it does not beat its
    // disk either.
    const double of_disk = tokens_of(run) / (bytes_from_disk(run) / kDiskRate);
    CHECK(of_disk < row.measured);
    CHECK(theirs < of_disk);
  }
}

// Brackets that need no simulation: a schedule takes at least what one resource needs, and no
// longer than if that resource's work came after all the rest.
TEST_CASE("both schedules lie between what each resource needs and all of it in turn", "[slow]") {
  constexpr double kFree = 1e9;  // So many times faster
  for (const PublishedRow& row : kPublished) {
    const FlexgenRun run = published_run(row);
    const PerTier weights = flexgen_weight_bytes(run);
    const double sweeps = static_cast<double>(run.new_tokens);
    for (const auto simulate : {&simulate_flexgen, &simulate_our_schedule}) {
      INFO(row.model << ", " << row.prompt << ", ours: " << (simulate == &simulate_our_schedule));
      const auto seconds = [&](const HardwareProfile& hardware) {
        return simulate(run, hardware)->seconds();
      };
      const SimulatedRun found = simulate(run, t4()).value();
      // By hand: the weights over the link, and what is read from disk.
      const double link = sweeps * (weights.host + weights.disk) / t4().link->to_device.value;
      const double disk = bytes_from_disk(run) / 2e9;
      CHECK(found.seconds() >= 0.99 * link);
      CHECK(found.seconds() >= 0.97 * disk);
      double in_turn = 0;
      for (const auto& part : found.resources) {
        CHECK(part.seconds <= found.seconds() * (1 + 1e-9));
        in_turn += part.seconds;
      }
      CHECK(found.seconds() <= in_turn * (1 + 1e-9));
      CHECK(at(found.resources, "disk read") == Approx(disk).epsilon(0.03));

      HardwareProfile no_disk = t4();
      for (auto* figures : {&no_disk.disk.read, &no_disk.disk.write}) {
        for (DiskFigure& figure : *figures) figure.rate.value *= kFree;
      }
      const double without = seconds(no_disk);
      const double of_disk = at(found.resources, "disk read") + at(found.resources, "disk write");
      CHECK(found.seconds() >= without * (1 - 1e-9));
      CHECK(found.seconds() <= (without + of_disk) * (1 + 1e-9));
    }
  }
}

TEST_CASE("our schedule in FlexGen's places is no slower than its loop, nor than itself in turn") {
  for (const PublishedRow& row : kPublished) {
    INFO(row.model << ", " << row.prompt);
    FlexgenRun run = published_run(row);
    const double theirs = simulate_flexgen(run, t4())->seconds();
    run.overlap = true;
    const double ours = simulate_our_schedule(run, t4())->seconds();
    run.overlap = false;
    CHECK(ours <= theirs);
    CHECK(ours <= simulate_our_schedule(run, t4())->seconds() * (1 + 1e-9));
  }
}

TEST_CASE("what the simulated FlexGen cannot run is named") {
  FlexgenRun run = run_of("opt-1.3b", 64, {4, 3}, kHost, kHost, kHost);
  HardwareProfile hardware = t4();
  hardware.host.memory_read.value = 0;
  CHECK_THAT(std::string(simulate_flexgen(run, hardware).status().message()),
             Catch::Contains("host.memory_read"));
  hardware.link.reset();
  CHECK(simulate_flexgen(run, hardware).status().code() == Code::kInvalidArgument);
  run.shape.family = "llama";
  CHECK_THAT(std::string(simulate_our_schedule(run, t4()).status().message()),
             Catch::Contains("OPT only"));
}

}  // namespace
}  // namespace spillway::flexgen_schedule_test
