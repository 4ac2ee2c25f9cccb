// The simulated schedule: what it may never do, and a few runs worked out by hand.
#include "policy/simulation/simulated_sweep.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/costed_plans.h"

namespace spillway::simulated_sweep_test {
namespace {

using test::figure;

double at(const std::vector<SimulatedRun::Part>& parts, const std::string& name) {
  double seconds = 0;
  for (const auto& part : parts) {
    if (part.name == name) seconds += part.seconds;
  }
  return seconds;
}

double most(const ResourceSeconds& busy) {
  return *std::max_element(busy.begin(), busy.end());
}

// A machine, a plan for it and a run, from a seed.
struct Scene {
  explicit Scene(int seed) : random(static_cast<unsigned>(seed)) {
    hardware = test::cost_machine();
    plan = test::costed_plan();
    plan.discrete = chance(0.5);
    hardware.disk.read = {{2 << 20, 32, figure(rate(0.2e9, 10e9))}};
    hardware.disk.write = {{2 << 20, 32, figure(rate(0.2e9, 10e9))}};
    hardware.link = HardwareProfile::Link{figure(rate(2e9, 30e9)), figure(rate(2e9, 30e9)), {}};
    hardware.host.memory_read = figure(rate(20e9, 100e9));
    plan.weights_from_disk = chance(0.7) ? below(250'000'000) : 0;
    if (plan.discrete) plan.weights_on_host = below(250'000'000 - plan.weights_from_disk);
    if (chance(0.5)) plan.kv_on_disk = 0.25 * static_cast<double>(below(5));
    if (plan.discrete && chance(0.5)) plan.kv_on_host = 1 - plan.kv_on_disk;
    hardware.host.decode_attention = figure(rate(2e9, 60e9));
    plan.host_attention = plan.discrete && chance(0.5);
    plan.kv_returns_whole = plan.discrete && chance(0.3);
    if (chance(0.2)) plan.activations_on_disk = 0.5;
    if (plan.discrete && chance(0.2)) plan.activations_on_host = 0.5;
    if (chance(0.5)) hardware.disk.processor = figure(rate(2e9, 60e9));
    plan.micro_batch.sequences = 1 + static_cast<int64_t>(below(16));
    const auto decoding = static_cast<int64_t>(1 + below(32));
    sweeps = {{.count = 1,
               .work = {.prompts = decoding,
                        .prompt_tokens = decoding * 100,
                        .prompt_rows =
                            static_cast<double>(decoding * static_cast<int64_t>(1 + below(100))),
                        .prompt_pairs = static_cast<double>(decoding * 100 * 101 / 2)}},
              {.count = static_cast<int64_t>(1 + below(6)),
               .work = {.decoding = decoding, .cached_rows = 101.0 * static_cast<double>(decoding)},
               .cached_rows_step = static_cast<double>(decoding)}};
    if (chance(0.3)) {  // A chunk that does not end its prompt
      sweeps.push_back({.count = 1,
                        .work = {.decoding = decoding,
                                 .prompts_unfinished = 1,
                                 .prompt_tokens = 60,
                                 .prompt_rows = 60,
                                 .prompt_pairs = 60 * 61 / 2,
                                 .cached_rows = 100.0 * static_cast<double>(decoding)}});
    }
    rings.weights_from_disk = ring(250e6);
    rings.weights_to_device = ring(250e6);
    rings.kv_from_disk = ring(100e6);
    rings.kv_to_device = ring(100e6);
  }

  uint64_t below(uint64_t n) { return n == 0 ? 0 : random() % n; }
  bool chance(double share) { return static_cast<double>(below(1000)) < 1000 * share; }
  double rate(double least, double most) {
    return least * std::pow(most / least, static_cast<double>(below(1001)) / 1000);
  }
  double ring(double whole) { return whole * rate(0.05, 2); }

  MachineRates rates() const { return MachineRates::of(hardware, plan).value(); }
  SimulatedRun run() const { return simulate(plan, rates(), sweeps, rings); }

  std::mt19937 random;
  HardwareProfile hardware;
  CostedPlan plan;
  std::vector<PlannedSweeps> sweeps;
  StagingRings rings;
};

TEST_CASE("a run in memory takes what the cost model says") {
  CostedPlan plan = test::costed_plan();
  plan.weight_bytes = 1000;  // So that arithmetic is the limit of every step
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const std::vector<PlannedSweeps> sweeps = {
      {.count = 5, .work = {.decoding = 16, .cached_rows = 160}, .cached_rows_step = 16}};
  const SimulatedRun run = simulate(plan, rates, sweeps, {});
  CHECK(run.seconds() == Approx(predict(plan, rates, sweeps).seconds()));
  CHECK(run.generated == 80);
  CHECK(run.waits.empty());
  CHECK(run.sweeps == 5);
  CHECK(run.sweeps_simulated == 5);
}

// Two layers of 100 MB from a disk of 2 GB/s, 0.05 s each; a layer's work takes W.
TEST_CASE("weights from disk, by hand") {
  CostedPlan plan = test::costed_plan();
  plan.shape.layers = 2;
  plan.kv_row_bytes = 0;
  plan.weight_bytes = 0;
  plan.weights_from_disk = 200'000'000;
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const std::vector<PlannedSweeps> sweeps = {{.count = 3, .work = {.decoding = 1}}};
  StagingRings rings;
  rings.weights_from_disk = 100e6;  // One layer
  const double work = (12e6 * 0.1e-9) + 4 * 33e3 / 40e9;
  const double head = 5e6 * 0.1e-9;
  // Nothing can be read while a layer is worked on; the head needs no weights of the ring.
  const SimulatedRun one = simulate(plan, rates, sweeps, rings);
  CHECK(one.seconds() == Approx(6 * (0.05 + work) + head));
  CHECK(at(one.waits, "weights") == Approx(6 * 0.05 - 2 * head));
  CHECK(at(one.resources, "disk read") == Approx(0.3));
  // With a ring of two, the disk never stands still: the last layer and head come after.
  rings.weights_from_disk = 200e6;
  CHECK(simulate(plan, rates, sweeps, rings).seconds() == Approx(0.3 + work + head));
  // The processor's share of bringing 100 MB.
  HardwareProfile busy = test::cost_machine();
  busy.disk.processor = figure(10e9);
  const MachineRates slowed = MachineRates::of(busy, plan).value();
  CHECK(simulate(plan, slowed, sweeps, rings).seconds() == Approx(0.3 + 0.01 + work + head));
  plan.overlap = false;
  CHECK(simulate(plan, rates, sweeps, rings).seconds() == Approx(0.3 + 6 * work + 3 * head));
}

// The cache of each of two micro-batches: 50 MB a layer there, 5 MB back.
TEST_CASE("a cache on disk comes ahead of the work and goes home behind it, by hand") {
  CostedPlan plan = test::costed_plan();
  plan.shape.layers = 1;
  plan.weight_bytes = 0;
  plan.kv_row_bytes = 500'000;
  plan.kv_sent_bytes = 5'000'000;
  plan.kv_on_disk = 1;
  plan.micro_batch.sequences = 1;
  const MachineRates rates = MachineRates::of(test::cost_machine(), plan).value();
  const std::vector<PlannedSweeps> sweeps = {
      {.count = 1, .work = {.decoding = 2, .cached_rows = 200}}};
  const double read = 50e6 / 2e9, attention = 50e6 / 20e9, write = 5e6 / 1e9;
  const double work = 12e6 * 0.1e-9 + 4 * 33e3 / 40e9, head = 5e6 * rates.seconds_per_weight(2);
  // Attention waits for each read; what is left of the second micro-batch and the head are longer
  // or shorter than the last write.
  const double worked = 2 * read + attention + 0.75 * work + head;
  const SimulatedRun run = simulate(plan, rates, sweeps, {});
  CHECK(run.seconds() == Approx(std::max(worked, 2 * read + attention + write)));
  CHECK(at(run.waits, "KV cache") > 0.9 * (2 * read - 2 * attention - 2 * work));
  // With room for one, the second is read when the first is home.
  StagingRings rings;
  rings.kv_from_disk = 60e6;
  CHECK(simulate(plan, rates, sweeps, rings).seconds() ==
        Approx(2 * read + 2 * attention + write + std::max(write, 0.75 * work + head)));
}

TEST_CASE("never faster than the slowest resource, nor than the cost model but for what is ahead") {
  const auto seed = GENERATE(range(1, 120));
  INFO("seed " << seed);
  const Scene scene(seed);
  const MachineRates rates = scene.rates();
  const SimulatedRun run = scene.run();
  const Prediction bound = predict(scene.plan, rates, scene.sweeps);
  CHECK(run.seconds() >= most(bound.busy) * (1 - 1e-9));
  CHECK(run.generated == bound.generated);
  // What is brought ahead of a sweep, its rings full, is the most by which it can beat its own
  // slowest resource.
  double ahead = 0;
  for (const PlannedSweeps& sweeps : scene.sweeps) {
    ahead +=
        static_cast<double>(sweeps.count) * (250e6 / rates.disk_read + 250e6 / rates.to_device);
  }
  CHECK(run.seconds() >= bound.seconds() - ahead);
  // The links carry what the cost model counts.
  for (const Resource link :
       {Resource::kDiskRead, Resource::kDiskWrite, Resource::kHostToDevice, Resource::kDeviceToHost,
        Resource::kHostMemory, Resource::kHostCompute}) {
    if (link == Resource::kHostMemory && !scene.plan.discrete) continue;
    INFO(resource_name(link));
    CHECK(at(run.resources, std::string(resource_name(link))) ==
          Approx(bound.busy[static_cast<size_t>(link)]).margin(1e-9));
  }
  CHECK(at(run.resources, "compute") >= bound.busy[0] * (1 - 1e-9));
}

TEST_CASE("without overlap everything adds up, and overlap never costs") {
  const auto seed = GENERATE(range(1, 60));
  INFO("seed " << seed);
  Scene scene(seed);
  const SimulatedRun overlapped = scene.run();
  scene.plan.overlap = false;
  const SimulatedRun serial = scene.run();
  double sum = 0;
  for (const auto& part : serial.resources) sum += part.name == "host memory" ? 0 : part.seconds;
  if (scene.plan.discrete) {
    // A transfer takes the longer of its link and the host's memory.
    CHECK(serial.seconds() >= sum * (1 - 1e-9));
  } else {
    CHECK(serial.seconds() == Approx(sum));
  }
  CHECK(overlapped.seconds() <= serial.seconds() * (1 + 1e-9));
}

TEST_CASE("one slow resource and deep rings: what the cost model says") {
  CostedPlan plan = test::costed_plan();
  plan.weights_from_disk = 250'000'000;
  HardwareProfile hardware = test::cost_machine();
  const std::vector<PlannedSweeps> sweeps = {
      {.count = 40, .work = {.decoding = 16, .cached_rows = 1600}, .cached_rows_step = 16}};
  for (const double disk : {0.5e9, 100e9}) {  // Slow, and fast
    hardware.disk.read = {{2 << 20, 32, figure(disk)}};
    const MachineRates rates = MachineRates::of(hardware, plan).value();
    CHECK(simulate(plan, rates, sweeps, {}).seconds() ==
          Approx(predict(plan, rates, sweeps).seconds()).epsilon(0.02));
  }
}

TEST_CASE("faster parts and deeper rings never make it slower") {
  const auto seed = GENERATE(range(1, 100));
  INFO("seed " << seed);
  const Scene scene(seed);
  const double before = scene.run().seconds();
  const auto check = [&](const char* what, const auto& change) {
    Scene better = scene;
    change(&better);
    INFO(what);
    // A link serves its askers in turn, so a transfer that comes a little earlier may delay another
    // that is needed sooner.
    CHECK(better.run().seconds() <= before * 1.03);
  };
  check("disk", [](Scene* s) { s->hardware.disk.read[0].rate = figure(2 * s->rates().disk_read); });
  check("disk write",
        [](Scene* s) { s->hardware.disk.write[0].rate = figure(2 * s->rates().disk_write); });
  check("link", [](Scene* s) { s->hardware.link->to_device = figure(2 * s->rates().to_device); });
  check("weight rings", [](Scene* s) {
    s->rings.weights_from_disk *= 2;
    s->rings.weights_to_device *= 2;
  });
  check("cache rings", [](Scene* s) {
    s->rings.kv_from_disk *= 2;
    s->rings.kv_to_device *= 2;
  });
}

TEST_CASE("sweeps that stand for others give nearly the whole run") {
  const auto seed = GENERATE(range(1, 30));
  INFO("seed " << seed);
  Scene scene(seed);
  scene.sweeps[0].count = 1;
  scene.sweeps[1].count = 200;
  scene.sweeps.resize(2);
  const MachineRates rates = scene.rates();
  const SimulatedRun whole = simulate(scene.plan, rates, scene.sweeps, scene.rings, {}, 1 << 30);
  const SimulatedRun some = simulate(scene.plan, rates, scene.sweeps, scene.rings, {}, 10'000);
  CHECK(whole.sweeps_simulated == 201);
  CHECK(some.sweeps == 201);
  CHECK(some.sweeps_simulated < 60);
  CHECK(some.seconds() == Approx(whole.seconds()).epsilon(0.05));
  CHECK(some.generated == whole.generated);
  CHECK(at(some.resources, "compute") == Approx(at(whole.resources, "compute")).epsilon(0.03));
}

TEST_CASE("machines one after another: each more gives at most its own share") {
  const auto seed = GENERATE(range(1, 30));
  INFO("seed " << seed);
  const Scene scene(seed);
  const MachineRates rates = scene.rates();
  const double one = scene.run().tokens_per_second();
  for (const int64_t machines : {2, 3, 5}) {
    // 10 layers in 3 runs: the longest has 4.
    const SimulatedRun run =
        simulate(scene.plan, rates, scene.sweeps, scene.rings, {machines, 10e9});
    INFO(machines << " machines");
    CHECK(run.generated == machines * scene.run().generated);
    CHECK(run.processors.size() == static_cast<size_t>(machines));
    CHECK(run.tokens_per_second() <= one * static_cast<double>(machines) * 1.03);
    const SimulatedRun slow =
        simulate(scene.plan, rates, scene.sweeps, scene.rings, {machines, 1e5});
    CHECK(slow.tokens_per_second() < run.tokens_per_second());
    CHECK(at(slow.waits, "activations from the machine before") > 0);
  }
}

}  // namespace
}  // namespace spillway::simulated_sweep_test
