#include "policy/cost_model.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/costed_plans.h"

namespace spillway::cost_model_test {
namespace {

using test::figure;

HardwareProfile machine() {
  return test::cost_machine();
}

CostedPlan plan() {
  return test::costed_plan();
}

MachineRates rates_of(const HardwareProfile& hardware, const CostedPlan& costed) {
  return MachineRates::of(hardware, costed).value();
}

TEST_CASE("a product's time goes linearly between measured heights") {
  const MachineRates rates = rates_of(machine(), plan());
  CHECK(rates.seconds_per_weight(1) == Approx(0.1e-9));
  CHECK(rates.seconds_per_weight(16) == Approx(0.2e-9));
  CHECK(rates.seconds_per_weight(136) == Approx(1.1e-9));
  CHECK(rates.seconds_per_weight(512) == Approx(4e-9));
  CHECK(rates.disk_read == 2e9);
}

TEST_CASE("a sweep costs what its resources have to do") {
  CostedPlan costed = plan();
  costed.weights_from_disk = 100'000'000;
  costed.kv_on_disk = 0.5;
  const MachineRates rates = rates_of(machine(), costed);
  // 16 sequences decode over 1,000 rows each.
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const ResourceSeconds cost = sweep_cost(costed, rates, sweeps);
  // 10 layers of 12 million weights and a head of 5 million, 640 MB of cache, and activations: 4
  // bytes of 33,000 numbers a token and layer.
  const double compute = 125e6 * 0.2e-9 + 640e6 / 20e9 + 16 * 10 * 4 * 33e3 / 40e9;
  CHECK(cost[0] == Approx(compute));
  CHECK(cost[1] == Approx((250e6 + 640e6) / 40e9));
  CHECK(cost[3] == Approx((100e6 + 320e6) / 2e9));
  CHECK(cost[4] == Approx(16 * 640'000 * 0.5 / 1e9));

  const Prediction found = predict(costed, rates, std::vector{sweeps});
  CHECK(found.bottleneck == Resource::kDiskRead);
  CHECK(found.seconds() == Approx(cost[3]));
  CHECK(found.tokens_per_second() == Approx(16 / cost[3]));
  costed.overlap = false;
  CHECK(predict(costed, rates, std::vector{sweeps}).seconds() ==
        Approx(cost[0] + cost[3] + cost[4]));
}

TEST_CASE("the disk takes of the processor that computes what the profile says") {
  HardwareProfile hardware = machine();
  CostedPlan costed = plan();
  costed.weights_from_disk = 100'000'000;
  costed.kv_on_disk = 0.5;
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost = [&] { return sweep_cost(costed, rates_of(hardware, costed), sweeps); };
  const ResourceSeconds before = cost();
  hardware.disk.processor = figure(10e9);
  const ResourceSeconds after = cost();
  CHECK(after[0] == Approx(before[0] + (100e6 + 320e6 + 16 * 640'000 * 0.5) / 10e9));
  for (size_t r = 1; r < kResources; ++r) CHECK(after[r] == before[r]);
  // A device with memory of its own computes on.
  hardware.link = HardwareProfile::Link{figure(10e9), figure(8e9), figure(15e9)};
  costed.discrete = true;
  const double busy = cost()[0];
  hardware.disk.processor = {};
  CHECK(cost()[0] == busy);
}

TEST_CASE("what the CPU attends to stays off the link and is its own work") {
  HardwareProfile hardware = machine();
  hardware.link = HardwareProfile::Link{figure(10e9), figure(8e9), figure(15e9)};
  CostedPlan costed = plan();
  costed.discrete = true;
  costed.kv_on_host = 0.5;
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost_of = [&](Resource resource) {
    return sweep_cost(costed, rates_of(hardware, costed), sweeps)[static_cast<size_t>(resource)];
  };
  const double memory = cost_of(Resource::kMemory), compute = cost_of(Resource::kCompute);
  CHECK(cost_of(Resource::kHostToDevice) == Approx(320e6 / 10e9));
  CHECK(cost_of(Resource::kHostCompute) == 0);
  costed.host_attention = true;
  CHECK_THAT(std::string(MachineRates::of(hardware, costed).status().message()),
             Catch::Contains("attention by the host"));
  hardware.host.decode_attention = figure(25e9);
  CHECK(cost_of(Resource::kHostCompute) == Approx(320e6 / 25e9));
  // Half of 16 x 10 steps: an output of 1,000 numbers up, 3,000 queries, keys and values down.
  CHECK(cost_of(Resource::kHostToDevice) == Approx(80 * 1000 * 2 / 10e9));
  CHECK(cost_of(Resource::kDeviceToHost) == Approx(80 * 3000 * 4 / 8e9));
  CHECK(cost_of(Resource::kMemory) == Approx(memory - 320e6 / 40e9));
  CHECK(cost_of(Resource::kCompute) == Approx(compute - 320e6 / 20e9));
  CHECK(resource_name(Resource::kHostCompute) == "host compute");
  // What is computed one after the other adds up.
  costed.overlap = false;
  const ResourceSeconds cost = sweep_cost(costed, rates_of(hardware, costed), sweeps);
  const double links = cost[5] + cost[6];
  CHECK(predict(costed, rates_of(hardware, costed), std::vector{sweeps}).seconds() ==
        Approx(std::max(cost[0], cost[1]) + links + 320e6 / 25e9));
}

TEST_CASE("the CPU attends beside the device for other micro-batches, not for the same one") {
  HardwareProfile hardware = machine();
  hardware.link = HardwareProfile::Link{figure(100e9), figure(100e9), figure(150e9)};
  hardware.host.decode_attention = figure(8e9);  // 80 ms
  CostedPlan costed = plan();
  costed.discrete = costed.host_attention = true;
  costed.kv_on_host = 1;
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost = [&] { return sweep_cost(costed, rates_of(hardware, costed), sweeps); };
  const auto seconds = [&] {
    return predict(costed, rates_of(hardware, costed), std::vector{sweeps}).seconds();
  };
  const auto expected = [&](double batches) {
    const double device = cost()[0], host = cost()[7];
    return std::max(device, host) + std::min(device, host) / batches;
  };
  CHECK(cost()[7] == Approx(640e6 / 8e9));
  CHECK(seconds() == Approx(cost()[0] + cost()[7]));
  for (const int64_t sequences : {8, 4, 1}) {
    costed.micro_batch.sequences = sequences;
    CHECK(seconds() == Approx(expected(16.0 / static_cast<double>(sequences))));
  }
  // As many small micro-batches as there are sequences cost what is the same for any.
  const ResourceSeconds before = cost();
  hardware.link->round_trips = figure(20e3);   // 50 us
  hardware.compute.small_ops = figure(100e3);  // 10 us
  CHECK(cost()[7] == Approx(before[7] + 16 * 10 * 50e-6));
  CHECK(cost()[0] == Approx(before[0] + 16 * 10 * 4 * 10e-6));
  costed.shape.position = PositionKind::kRotary;
  costed.shape.mlp_kind = MlpKind::kGated;
  CHECK(small_op_seconds(costed.shape, rates_of(hardware, costed)) == Approx(6 * 10e-6));
  // Where the device has the cache, nothing goes to the host and back.
  costed.kv_on_host = 0;
  CHECK(cost()[7] == 0);
}

TEST_CASE("the CPU attends where it reads the cache faster than the link") {
  HardwareProfile hardware = machine();
  hardware.host.decode_attention = figure(25e9);
  CHECK_FALSE(host_attention_pays(hardware));  // No link
  hardware.link = HardwareProfile::Link{figure(12e9), figure(11e9), figure(20e9)};
  CHECK(host_attention_pays(hardware));
  hardware.link->to_device = figure(50e9);
  CHECK_FALSE(host_attention_pays(hardware));
  hardware.link->to_device = figure(12e9);
  hardware.host.decode_attention = {};
  CHECK_FALSE(host_attention_pays(hardware));
}

TEST_CASE("a prompt's rows pass in micro-batches") {
  CostedPlan costed = plan();
  costed.micro_batch.rows = 256;
  const MachineRates rates = rates_of(machine(), costed);
  const PlannedSweeps sweeps{.count = 1,
                             .work = {.prompts = 4,
                                      .prompt_tokens = 512,
                                      .prompt_rows = 512,
                                      .prompt_pairs = 4 * 128 * 129 / 2}};
  // Of two prompts each, whose last rows alone go on behind the last layer's attention.
  const double last = 9e6;
  const double compute = 2 * (120e6 - last) * 2e-9 + 2 * last * rates.seconds_per_weight(2) +
                         5e6 * rates.seconds_per_weight(4) +
                         4.0 * (4 * 128 * 129 / 2) * 1000 * 10 / 100e9 + 512 * 10 * 4 * 33e3 / 40e9;
  CHECK(sweep_cost(costed, rates, sweeps)[0] == Approx(compute));
}

TEST_CASE("planned micro-batches are those that the engine cuts of the same sequences") {
  std::mt19937_64 random(11);
  const auto upto = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  for (int round = 0; round < 500; ++round) {
    CostedPlan costed = plan();
    costed.micro_batch = {.rows = 1 + upto(300), .sequences = upto(20)};
    // Sequences that decode, or prompts of one length.
    const bool prompts = round % 2 == 0;
    const int64_t sequences = 1 + upto(50), tokens = prompts ? 1 + upto(200) : 1;
    SweepWork work;
    (prompts ? work.prompts : work.decoding) = sequences;
    if (prompts) work.prompt_tokens = sequences * tokens;
    std::vector<MicroBatch> cut;
    for (int64_t i = 0; i < sequences; ++i) {
      add_to_micro_batches(1, tokens, costed.micro_batch, &cut);
    }
    const std::vector<MicroBatch> planned = planned_micro_batches(costed, work);
    REQUIRE(planned.size() == cut.size());
    for (size_t i = 0; i < cut.size(); ++i) {
      CHECK(planned[i].first_item == cut[i].first_item);
      CHECK(planned[i].items == cut[i].items);
      CHECK(planned[i].rows == cut[i].rows);
    }
  }
  // Of a sweep of both, the engine may put prompts beside the last that decode; a plan does not.
  CHECK(planned_micro_batches(plan(), {.decoding = 3, .prompts = 2, .prompt_tokens = 20}).size() ==
        2);
}

TEST_CASE(
    "under a limited rule prompts send the rows they keep, and a device returns what it read") {
  HardwareProfile hardware = machine();
  CostedPlan costed = plan();
  costed.kv_on_disk = 0.5;
  const auto cost_of = [&](Resource resource, const PlannedSweeps& sweeps) {
    return sweep_cost(costed, rates_of(hardware, costed), sweeps)[static_cast<size_t>(resource)];
  };
  const PlannedSweeps prefill{.work = {.prompts = 4, .prompt_tokens = 512, .prompt_rows = 100}};
  CHECK(cost_of(Resource::kDiskWrite, prefill) == Approx(100 * 40e3 * 0.5 / 1e9));
  hardware.link = HardwareProfile::Link{figure(10e9), figure(8e9), figure(15e9)};
  costed.discrete = true;
  costed.kv_on_host = 0.3;
  CHECK(cost_of(Resource::kDeviceToHost, prefill) == Approx(100 * 40e3 * 0.8 / 8e9));
  const PlannedSweeps decode{.work = {.decoding = 16, .cached_rows = 16'000}};
  CHECK(cost_of(Resource::kDeviceToHost, decode) == Approx(16 * 640e3 * 0.8 / 8e9));
  costed.kv_returns_whole = true;
  CHECK(cost_of(Resource::kDeviceToHost, decode) == Approx(640e6 * 0.8 / 8e9));
  CHECK(cost_of(Resource::kDiskWrite, decode) == Approx(16 * 640e3 * 0.5 / 1e9));
}

TEST_CASE("4-bit rows are attended to at their own rate, or as long as 16-bit ones take") {
  HardwareProfile hardware = machine();
  CostedPlan costed = plan();
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost = [&] { return sweep_cost(costed, rates_of(hardware, costed), sweeps); };
  const ResourceSeconds wide = cost();
  costed.kv_format = Format::kQ4;
  costed.kv_row_bytes = costed.kv_row_bytes * 9 / 32;
  const ResourceSeconds narrow = cost();
  CHECK(narrow[0] == Approx(wide[0]));
  // 640 MB less 23/32 of them are read.
  CHECK(wide[1] - narrow[1] == Approx(640e6 * 23 / 32 / 40e9));
  hardware.compute.decode_attention_q4 = figure(9e9);
  CHECK(cost()[0] == Approx(wide[0] - 640e6 / 20e9 + 180e6 / 9e9));
}

TEST_CASE("8-bit rows are attended to at their own rate, or at that of 16-bit ones") {
  HardwareProfile hardware = machine();
  CostedPlan costed = plan();
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost = [&] { return sweep_cost(costed, rates_of(hardware, costed), sweeps); };
  const ResourceSeconds wide = cost();
  costed.kv_format = Format::kQ8;
  costed.kv_row_bytes /= 2;
  CHECK(wide[0] - cost()[0] == Approx(320e6 / 20e9));
  hardware.compute.decode_attention_q8 = figure(16e9);
  CHECK(cost()[0] == Approx(wide[0] - 640e6 / 20e9 + 320e6 / 16e9));
}

TEST_CASE("each query head that shares a KV head adds as much time to a byte of the cache") {
  HardwareProfile hardware = machine();
  CostedPlan costed = plan();
  const PlannedSweeps sweeps{.count = 1, .work = {.decoding = 16, .cached_rows = 16'000}};
  const auto cost = [&](int64_t shared) {
    costed.shape.kv_heads = costed.shape.heads / shared;  // kv_row_bytes stay.
    return sweep_cost(costed, rates_of(hardware, costed), sweeps)[0];
  };
  costed.shape.heads = 32;
  const auto without_attention = [&](int64_t shared, double rate) {
    return cost(shared) - 640e6 / rate;
  };
  const double rest = without_attention(1, 20e9), rest_of_8 = without_attention(8, 20e9);
  hardware.compute.decode_attention_shared = figure(10e9);
  CHECK(cost(1) == Approx(rest + 640e6 / 20e9));
  CHECK(cost(8) == Approx(rest_of_8 + 640e6 * (1 / 20e9 + 7.0 / 3 * (1 / 10e9 - 1 / 20e9))));
  hardware.compute.decode_attention_shared = figure(25e9);  // Noise: never faster
  CHECK(cost(8) == Approx(rest_of_8 + 640e6 / 20e9));
  costed.kv_format = Format::kQ8;
  hardware.compute.decode_attention_q8_shared = figure(5e9);  // Of no use without the other
  CHECK(cost(8) == Approx(rest_of_8 + 640e6 / 20e9));
  hardware.compute.decode_attention_q8 = figure(15e9);
  CHECK(cost(8) == Approx(rest_of_8 + 640e6 * (1 / 15e9 + 7.0 / 3 * (1 / 5e9 - 1 / 15e9))));
  costed.kv_format = Format::kQ4;
  hardware.compute.decode_attention_q4 = figure(9e9);
  hardware.compute.decode_attention_q4_shared = figure(3e9);
  CHECK(cost(8) == Approx(rest_of_8 + 640e6 * (1 / 9e9 + 7.0 / 3 * (1 / 3e9 - 1 / 9e9))));
}

TEST_CASE("what a profile lacks is named") {
  HardwareProfile hardware = machine();
  hardware.compute.matrix.clear();
  CHECK_THAT(std::string(MachineRates::of(hardware, plan()).status().message()),
             Catch::Contains("\"test\" has no rate of matrix products"));
  hardware = machine();
  hardware.disk.write.clear();
  CHECK(MachineRates::of(hardware, plan()).ok());
  CostedPlan costed = plan();
  costed.kv_on_disk = 0.1;
  CHECK_THAT(std::string(MachineRates::of(hardware, costed).status().message()),
             Catch::Contains("rates of the disk"));
  costed = plan();
  costed.discrete = true;
  CHECK_THAT(std::string(MachineRates::of(machine(), costed).status().message()),
             Catch::Contains("link"));
}

TEST_CASE("faster hardware never predicts less throughput") {
  std::mt19937_64 random(3);
  const auto share = [&] { return static_cast<double>(random() % 1001) / 1000; };
  for (int round = 0; round < 500; ++round) {
    CostedPlan costed = plan();
    costed.discrete = round % 2 == 1;
    costed.weights_from_disk = random() % 250'000'000;
    costed.kv_on_disk = share() / 2;
    if (costed.discrete) costed.kv_on_host = share() / 2;
    costed.activations_on_disk = share();
    costed.host_attention = costed.discrete && round % 5 == 0;
    costed.overlap = round % 3 != 0;
    HardwareProfile hardware = machine();
    hardware.host.decode_attention = figure(25e9);
    hardware.link = HardwareProfile::Link{figure(12e9), figure(11e9), figure(20e9)};
    hardware.link->round_trips = figure(3e4);
    hardware.compute.small_ops = figure(1e5);
    hardware.disk.processor = figure(4e9);
    const std::vector<RequestGroup> groups = {{static_cast<int64_t>(1 + random() % 500),
                                               static_cast<int64_t>(1 + random() % 50),
                                               static_cast<int64_t>(1 + random() % 40)}};
    const std::vector<KvReservation> kv = {{1, 600}};
    SweepLimits limits{.block_sequences = static_cast<int64_t>(1 + random() % 20),
                       .prefill_tokens = 2048,
                       .kv_bytes = 1 + random() % 20};
    const auto speed = [&] {
      return predict(costed, rates_of(hardware, costed), plan_sweeps(groups, kv, limits))
          .tokens_per_second();
    };
    const double before = speed();
    CHECK(before > 0);
    Figure* const figures[] = {&hardware.compute.memory_read,
                               &hardware.host.memory_read,
                               &hardware.compute.prompt_attention,
                               &hardware.disk.read[0].rate,
                               &hardware.compute.decode_attention,
                               &hardware.disk.write[0].rate,
                               &hardware.link->to_device,
                               &hardware.link->to_host,
                               &hardware.compute.matrix[2].rate,
                               &hardware.host.decode_attention,
                               &hardware.link->round_trips,
                               &hardware.compute.small_ops,
                               &hardware.disk.processor};
    Figure& faster = *figures[random() % std::size(figures)];
    faster.value *= 1 + share();
    CHECK(speed() >= before * (1 - 1e-12));
  }
}

}  // namespace
}  // namespace spillway::cost_model_test
