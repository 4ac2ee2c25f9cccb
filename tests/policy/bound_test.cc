// The bound of a run, on numbers small enough to do by hand.
#include "policy/bound.h"

#include <catch2/catch.hpp>

#include "tests/support/tiny_shape.h"

namespace spillway {
namespace {

ModelShape small_shape() {
  return test::make_shape({.hidden = 10, .heads = 1, .mlp = 20, .positions = 50});
}

BoundModel model_of(const ModelShape& shape, uint64_t element_bytes) {
  BoundModel model{shape, {}, 80};
  for (const LinearShape& linear : linear_shapes(shape)) {
    model.matrix_bytes.push_back(static_cast<uint64_t>(linear.outputs * linear.inputs) *
                                 element_bytes);
  }
  return model;
}

Ceilings flat_ceilings(const ModelShape& shape, double flops, double bytes) {
  Ceilings ceilings;
  for (const LinearShape& linear : linear_shapes(shape)) {
    ceilings.matrix.push_back({1, linear.outputs, linear.inputs, flops});
  }
  ceilings.attention_flops_per_second = flops;
  ceilings.memory_bytes_per_second = bytes;
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
  const BoundModel model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1000, 1e6);
  const SweepWork sweep{.tokens = 3, .logit_rows = 1};
  const Bound bound = bound_of(model, ceilings, std::span(&sweep, 1));
  CHECK(bound.compute_seconds == Approx(flops_of(3, 1) / 1000));
  CHECK(bound.memory_seconds == Approx(4 * (2 * 800 + 1000) / 1e6));
  CHECK(bound.seconds == bound.compute_seconds);
  CHECK(bound.resource == "compute");
}

TEST_CASE("one bound adds up sweeps, the other is the slowest resource's total") {
  const BoundModel model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e4, 1e4);
  const std::vector<SweepWork> run = {{.tokens = 30, .logit_rows = 1, .prompt_pairs = 465},
                                      {.tokens = 1, .logit_rows = 1, .cached_rows = 31}};
  const Bound bound = bound_of(model, ceilings, run);
  // Attention in the first layer; what the one wanted row attends to in the last is left out.
  const double prefill = (flops_of(30, 1) + 4.0 * 465 * 10) / 1e4;
  const double decode = (4 * 2600 + 80 * 31) / 1e4;
  CHECK(bound.seconds == Approx(prefill + decode));
  CHECK(bound.seconds_any_schedule <= bound.seconds);
  CHECK(bound.seconds_any_schedule == Approx(bound.compute_seconds));
}

TEST_CASE("a sweep without logits reads no head, and of the last layer what fills the cache") {
  const BoundModel model = model_of(small_shape(), 2);
  const Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e3);
  const SweepWork sweep{.tokens = 1};
  CHECK(bound_of(model, ceilings, std::span(&sweep, 1)).memory_seconds ==
        Approx(2 * (800 + 200) / 1e3));
}

TEST_CASE("rows of the last layer that reach no logit are not needed") {
  BoundModel model = model_of(small_shape(), 4);
  const Ceilings ceilings = flat_ceilings(model.shape, 1, 1e12);
  const auto flops = [&](const SweepWork& work) {
    return bound_of(model, ceilings, std::span(&work, 1)).compute_seconds;
  };
  // A prompt of 30 tokens, of which one, none, or all (scored) reach logits.
  CHECK(flops({.tokens = 30, .logit_rows = 1}) == Approx(flops_of(30, 1)));
  CHECK(flops({.tokens = 30}) == Approx(flops_of(30, 0)));
  CHECK(flops({.tokens = 30, .logit_rows = 30}) == Approx(30 * (kTokenFlops + kHeadFlops)));
  const double pairs = 4.0 * 465 * 10;
  CHECK(flops({.tokens = 30, .logit_rows = 1, .prompt_pairs = 465}) ==
        Approx(flops_of(30, 1) + pairs));
  CHECK(flops({.tokens = 30, .logit_rows = 30, .prompt_pairs = 465}) ==
        Approx(30 * (kTokenFlops + kHeadFlops) + 2 * pairs));
  // A rule that keeps what was attended to reads every row's attention: queries and pairs.
  model.keeps_by_score = true;
  CHECK(flops({.tokens = 30, .logit_rows = 1, .prompt_pairs = 465}) ==
        Approx(flops_of(30, 1) + 2.0 * 29 * 100 + 2 * pairs));
}

TEST_CASE("at the hardware's peak products of every height run alike") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e12);  // What kernels reached
  ceilings.products = ceilings.attention_flops_per_second = 1000;
  for (const int64_t rows : {1, 64, 5000}) {
    const SweepWork sweep{.tokens = rows, .logit_rows = rows};
    CHECK(bound_of(model, ceilings, std::span(&sweep, 1)).compute_seconds ==
          Approx(static_cast<double>(rows) * (kTokenFlops + kHeadFlops) / 1000));
  }
}

TEST_CASE("cached rows are read at a rate of their own where there is one") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e12, 1e3);
  const SweepWork sweep{.tokens = 1, .logit_rows = 1, .cached_rows = 31};
  const auto seconds = [&] {
    return bound_of(model, ceilings, std::span(&sweep, 1)).memory_seconds;
  };
  CHECK(seconds() == Approx((4 * 2600 + 80 * 31) / 1e3));
  ceilings.cache_bytes_per_second = 500;
  CHECK(seconds() == Approx(4 * 2600 / 1e3 + 80 * 31 / 500.0));
}

TEST_CASE("a height uses the largest measured height below it") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e12);
  for (const LinearShape& linear : linear_shapes(model.shape)) {
    ceilings.matrix.push_back({64, linear.outputs, linear.inputs, 1000});
  }
  const auto seconds = [&](int64_t tokens) {
    const SweepWork sweep{.tokens = tokens};
    return bound_of(model, ceilings, std::span(&sweep, 1)).seconds;
  };
  CHECK(seconds(63) == Approx(flops_of(63, 0) / 100));
  CHECK(seconds(64) == Approx(flops_of(64, 0) / 1000));
}

TEST_CASE("weights count the bytes that the kernels read, whichever format and tier") {
  BoundModel model = model_of(small_shape(), 2);
  for (uint64_t& bytes : model.matrix_bytes) bytes = 7;
  const Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e3);
  const SweepWork sweep{.tokens = 1, .logit_rows = 1, .disk_read_bytes = 1 << 20};
  // Four matrices in two layers, and the head.
  CHECK(bound_of(model, ceilings, std::span(&sweep, 1)).memory_seconds == Approx(9 * 7 / 1e3));
}

TEST_CASE("rows that the CPU attends to are not read by the device") {
  const BoundModel model = model_of(small_shape(), 2);
  const Ceilings ceilings = flat_ceilings(small_shape(), 1000, 1e6);
  SweepWork sweep{.tokens = 1, .logit_rows = 1, .cached_rows = 31};
  const double all = bound_of(model, ceilings, std::span(&sweep, 1)).memory_seconds;
  sweep.host_attended_bytes = 20 * model.kv_row_bytes;
  const double rest = bound_of(model, ceilings, std::span(&sweep, 1)).memory_seconds;
  CHECK(all - rest ==
        Approx(static_cast<double>(20 * model.kv_row_bytes) / ceilings.memory_bytes_per_second));
}

TEST_CASE("disk links bound sweeps, each direction alone") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e9);
  ceilings.disk_read_bytes_per_second = 1000;
  ceilings.disk_write_bytes_per_second = 500;
  const std::vector<SweepWork> run = {
      {.tokens = 1, .logit_rows = 1, .disk_read_bytes = 4000, .disk_write_bytes = 1000},
      {.tokens = 1, .logit_rows = 1, .disk_read_bytes = 1000, .disk_write_bytes = 2500}};
  const Bound bound = bound_of(model, ceilings, run);
  CHECK(bound.disk_read_seconds == Approx(5));
  CHECK(bound.disk_write_seconds == Approx(7));
  CHECK(bound.seconds == Approx(4 + 5));
  CHECK(bound.resource == "disk write");
  CHECK(bound.seconds_any_schedule == Approx(7));

  ceilings.disk_write_bytes_per_second = 0;  // Not measured
  const Bound unmeasured = bound_of(model, ceilings, run);
  CHECK(unmeasured.disk_write_seconds == 0);
  CHECK(unmeasured.seconds == Approx(5));
  CHECK(unmeasured.resource == "disk read");
}

TEST_CASE("a sweep that computes longer than it reads is bounded by compute") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 100, 1e9);
  ceilings.disk_read_bytes_per_second = 1000;
  const SweepWork sweep{.tokens = 1, .disk_read_bytes = 1000};
  const Bound bound = bound_of(model, ceilings, std::span(&sweep, 1));
  CHECK(bound.seconds == Approx(flops_of(1, 0) / 100));
  CHECK(bound.resource == "compute");
  CHECK(bound.disk_read_seconds == Approx(1));
}

TEST_CASE("each direction of the link to a device is held against its own rate") {
  const BoundModel model = model_of(small_shape(), 4);
  Ceilings ceilings = flat_ceilings(model.shape, 1e9, 1e9);
  ceilings.to_device_bytes_per_second = 1000;
  ceilings.to_host_bytes_per_second = 200;
  const std::vector<SweepWork> run = {
      {.tokens = 1, .logit_rows = 1, .to_device_bytes = 4000, .to_host_bytes = 100},
      {.tokens = 1, .logit_rows = 1, .to_device_bytes = 1000, .to_host_bytes = 600}};
  const Bound bound = bound_of(model, ceilings, run);
  CHECK(bound.to_device_seconds == Approx(5));
  CHECK(bound.to_host_seconds == Approx(3.5));
  CHECK(bound.seconds == Approx(4 + 3));
  CHECK(bound.resource == "host to device");
}

TEST_CASE("a run without sweeps has no bound") {
  const BoundModel model = model_of(small_shape(), 4);
  const Bound bound = bound_of(model, flat_ceilings(model.shape, 1, 1), {});
  CHECK(bound.seconds == 0);
  CHECK(bound.seconds_any_schedule == 0);
}

}  // namespace
}  // namespace spillway
