// The bound of a run, on numbers small enough to do by hand.
#include "policy/bound.h"

#include <catch2/catch.hpp>

#include "kernels/base/linear_shapes.h"
#include "tests/support/hardware.h"
#include "tests/support/tiny_shape.h"

namespace spillway::bound_test {
namespace {

ModelShape small_shape() {
  return test::make_shape({.hidden = 10, .heads = 1, .mlp = 20, .positions = 50});
}

CostedPlan model_of(const ModelShape& shape, uint64_t element_bytes) {
  CostedPlan plan;
  plan.shape = shape;
  plan.kv_row_bytes = 80;
  count_weight_bytes(
      [&](const LinearShape& linear) {
        return static_cast<uint64_t>(linear.outputs * linear.inputs) * element_bytes;
      },
      &plan);
  return plan;
}

Ceilings flat_ceilings(const ModelShape& shape, double flops, double bytes) {
  Ceilings ceilings;
  for (const LinearShape& linear : linear_shapes(shape)) {
    ceilings.matrix.push_back({1, linear.outputs, linear.inputs, flops});
  }
  ceilings.prompt_attention = flops;
  ceilings.memory = bytes;
  return ceilings;
}

// Multiply-adds of one token in one layer: 30*10 + 10*10 + 20*10 + 10*20 = 800; head 1000.
constexpr double kTokenFlops = 2 * 2 * 800;
constexpr double kHeadFlops = 2 * 1000;

// Of `tokens` rows of which `wanted` reach logits: in the last layer the others need their keys and
// values alone, 20*10 of the 800.
constexpr double flops_of(double tokens, double wanted) {
  return 2 * (tokens * 800 + tokens * 200 + wanted * 600) + wanted * kHeadFlops;
}

TEST_CASE("a sweep is bounded by its slowest resource") {
  const CostedPlan model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1000, 1e6);
  const SweepWork sweep{.prompt_tokens = 3, .logit_rows = 1};
  const Bound bound = bound_of(model, false, ceilings, std::span(&sweep, 1));
  CHECK(bound.busy[index(Resource::kCompute)] == Approx(flops_of(3, 1) / 1000));
  CHECK(bound.busy[index(Resource::kMemory)] == Approx(4 * (2 * 800 + 1000) / 1e6));
  CHECK(bound.seconds == bound.busy[index(Resource::kCompute)]);
  CHECK(bound.resource == Resource::kCompute);
}

TEST_CASE("one bound adds up sweeps, the other is the slowest resource's total") {
  const CostedPlan model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e4, 1e4);
  const std::vector<SweepWork> run = {{.prompt_tokens = 30, .logit_rows = 1, .prompt_pairs = 465},
                                      {.decoding = 1, .logit_rows = 1, .cached_rows = 31}};
  const Bound bound = bound_of(model, false, ceilings, run);
  // Attention in the first layer; what the one wanted row attends to in the last is left out.
  const double prefill = (flops_of(30, 1) + 4.0 * 465 * 10) / 1e4;
  const double decode = (4 * 2600 + 80 * 31) / 1e4;
  CHECK(bound.seconds == Approx(prefill + decode));
  CHECK(bound.seconds_any_schedule <= bound.seconds);
  CHECK(bound.seconds_any_schedule == Approx(bound.busy[index(Resource::kCompute)]));
}

TEST_CASE("a sweep without logits reads no head, and of the last layer what fills the cache") {
  const CostedPlan model = model_of(small_shape(), 2);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e3);
  const SweepWork sweep{.decoding = 1};
  CHECK(bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kMemory)] ==
        Approx(2 * (800 + 200) / 1e3));
}

TEST_CASE("rows of the last layer that reach no logit are not needed") {
  CostedPlan model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1, 1e12);
  bool keeps_by_score = false;
  const auto flops = [&](const SweepWork& work) {
    return bound_of(model, keeps_by_score, ceilings, std::span(&work, 1))
        .busy[index(Resource::kCompute)];
  };
  // A prompt of 30 tokens, of which one, none, or all (scored) reach logits.
  CHECK(flops({.prompt_tokens = 30, .logit_rows = 1}) == Approx(flops_of(30, 1)));
  CHECK(flops({.prompt_tokens = 30}) == Approx(flops_of(30, 0)));
  CHECK(flops({.prompt_tokens = 30, .logit_rows = 30}) == Approx(30 * (kTokenFlops + kHeadFlops)));
  const double pairs = 4.0 * 465 * 10;
  CHECK(flops({.prompt_tokens = 30, .logit_rows = 1, .prompt_pairs = 465}) ==
        Approx(flops_of(30, 1) + pairs));
  CHECK(flops({.prompt_tokens = 30, .logit_rows = 30, .prompt_pairs = 465}) ==
        Approx(30 * (kTokenFlops + kHeadFlops) + 2 * pairs));
  // A rule that keeps what was attended to reads every row's attention: queries and pairs.
  keeps_by_score = true;
  CHECK(flops({.prompt_tokens = 30, .logit_rows = 1, .prompt_pairs = 465}) ==
        Approx(flops_of(30, 1) + 2.0 * 29 * 100 + 2 * pairs));
}

TEST_CASE("at the hardware's peak products of every height run alike") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e12);  // What kernels reached
  ceilings.products = ceilings.prompt_attention = 1000;
  for (const int64_t rows : {1, 64, 5000}) {
    const SweepWork sweep{.prompt_tokens = rows, .logit_rows = rows};
    CHECK(bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kCompute)] ==
          Approx(static_cast<double>(rows) * (kTokenFlops + kHeadFlops) / 1000));
  }
}

TEST_CASE("cached rows are read at a rate of their own where there is one") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e12, 1e3);
  const SweepWork sweep{.decoding = 1, .logit_rows = 1, .cached_rows = 31};
  const auto seconds = [&] {
    return bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kMemory)];
  };
  CHECK(seconds() == Approx((4 * 2600 + 80 * 31) / 1e3));
  ceilings.cache = 500;
  CHECK(seconds() == Approx(4 * 2600 / 1e3 + 80 * 31 / 500.0));
}

TEST_CASE("a height uses the largest measured height below it") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e12);
  for (const LinearShape& linear : linear_shapes(model.shape)) {
    ceilings.matrix.push_back({64, linear.outputs, linear.inputs, 1000});
  }
  const auto seconds = [&](int64_t tokens) {
    const SweepWork sweep{.prompt_tokens = tokens};
    return bound_of(model, false, ceilings, std::span(&sweep, 1)).seconds;
  };
  CHECK(seconds(63) == Approx(flops_of(63, 0) / 100));
  CHECK(seconds(64) == Approx(flops_of(64, 0) / 1000));
}

TEST_CASE("weights count the bytes that the kernels read, whichever format and tier") {
  CostedPlan model = model_of(small_shape(), 2);
  count_weight_bytes([](const LinearShape&) { return 7; }, &model);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e3);
  const SweepWork sweep{.decoding = 1, .logit_rows = 1, .disk_read_bytes = 1 << 20};
  // Four matrices in two layers, and the head.
  CHECK(bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kMemory)] ==
        Approx(9 * 7 / 1e3));
}

TEST_CASE("rows that the CPU attends to are not read by the device") {
  const CostedPlan model = model_of(small_shape(), 2);
  const Ceilings ceilings = flat_ceilings(small_shape(), 1000, 1e6);
  SweepWork sweep{.decoding = 1, .logit_rows = 1, .cached_rows = 31};
  const double all =
      bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kMemory)];
  sweep.host_attended_bytes = 20 * model.kv_row_bytes;
  const double rest =
      bound_of(model, false, ceilings, std::span(&sweep, 1)).busy[index(Resource::kMemory)];
  CHECK(all - rest == Approx(static_cast<double>(20 * model.kv_row_bytes) / ceilings.memory));
}

TEST_CASE("disk links bound sweeps, each direction alone") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e9);
  ceilings.disk_read = 1000;
  ceilings.disk_write = 500;
  const std::vector<SweepWork> run = {
      {.decoding = 1, .logit_rows = 1, .disk_read_bytes = 4000, .disk_write_bytes = 1000},
      {.decoding = 1, .logit_rows = 1, .disk_read_bytes = 1000, .disk_write_bytes = 2500}};
  const Bound bound = bound_of(model, false, ceilings, run);
  CHECK(bound.busy[index(Resource::kDiskRead)] == Approx(5));
  CHECK(bound.busy[index(Resource::kDiskWrite)] == Approx(7));
  CHECK(bound.seconds == Approx(4 + 5));
  CHECK(bound.resource == Resource::kDiskWrite);
  CHECK(bound.seconds_any_schedule == Approx(7));

  ceilings.disk_write = 0;  // Not measured
  const Bound unmeasured = bound_of(model, false, ceilings, run);
  CHECK(unmeasured.busy[index(Resource::kDiskWrite)] == 0);
  CHECK(unmeasured.seconds == Approx(5));
  CHECK(unmeasured.resource == Resource::kDiskRead);
}

TEST_CASE("a sweep that computes longer than it reads is bounded by compute") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e9);
  ceilings.disk_read = 1000;
  const SweepWork sweep{.decoding = 1, .disk_read_bytes = 1000};
  const Bound bound = bound_of(model, false, ceilings, std::span(&sweep, 1));
  CHECK(bound.seconds == Approx(flops_of(1, 0) / 100));
  CHECK(bound.resource == Resource::kCompute);
  CHECK(bound.busy[index(Resource::kDiskRead)] == Approx(1));
}

TEST_CASE("each direction of the link to a device is held against its own rate") {
  const CostedPlan model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e9);
  ceilings.to_device = 1000;
  ceilings.to_host = 200;
  const std::vector<SweepWork> run = {
      {.decoding = 1, .logit_rows = 1, .to_device_bytes = 4000, .to_host_bytes = 100},
      {.decoding = 1, .logit_rows = 1, .to_device_bytes = 1000, .to_host_bytes = 600}};
  const Bound bound = bound_of(model, false, ceilings, run);
  CHECK(bound.busy[index(Resource::kHostToDevice)] == Approx(5));
  CHECK(bound.busy[index(Resource::kDeviceToHost)] == Approx(3.5));
  CHECK(bound.seconds == Approx(4 + 3));
  CHECK(bound.resource == Resource::kHostToDevice);
}

TEST_CASE("a run without sweeps has no bound") {
  const CostedPlan model = model_of(small_shape(), 4);
  const Bound bound = bound_of(model, false, flat_ceilings(model.shape, 1, 1), {});
  CHECK(bound.seconds == 0);
  CHECK(bound.seconds_any_schedule == 0);
}

TEST_CASE("the bound of one sweep is that of a run of it alone") {
  const CostedPlan model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e4, 1e4);
  const SweepWork prompt = {.prompt_tokens = 30, .logit_rows = 1, .prompt_pairs = 465};
  const SweepWork step = {.decoding = 1, .logit_rows = 1, .cached_rows = 31};
  for (const SweepWork& work : {prompt, step}) {
    CHECK(bound_seconds(model, false, ceilings, work) ==
          bound_of(model, false, ceilings, std::span(&work, 1)).seconds);
  }
}

TEST_CASE("a profile's rates bound a sweep by what any engine must do, not by what ours does") {
  HardwareProfile machine = test::cost_machine();
  machine.disk.processor = test::figure(1e9);
  CostedPlan model = model_of(small_shape(), 2);
  model.format = Format::kBF16;
  const MachineRates rates = MachineRates::of(machine, model).value();
  const MachineRates least = bound_rates(rates);
  CHECK(rates.compute_per_disk_byte > 0);
  CHECK(least.compute_per_disk_byte == 0);
  CHECK(least.decode_attention == 0);
  CHECK(least.memory == rates.memory);
  CHECK(least.disk_read == rates.disk_read);
  const SweepWork work = {
      .decoding = 2, .logit_rows = 2, .cached_rows = 60, .disk_read_bytes = 1e9};
  const double seconds = bound_seconds(model, false, least, work);
  CHECK(seconds >= 1e9 / rates.disk_read);
  CHECK(seconds <= bound_seconds(model, false, rates, work));
}

}  // namespace
}  // namespace spillway::bound_test
