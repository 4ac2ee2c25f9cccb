// Whose fault an error is: the sequence's own, which would come again, or the machine's.
#include <catch2/catch.hpp>
#include <numeric>

#include "scheduler/block_scheduler.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::own_fault_test {
namespace {

TEST_CASE("a sequence that no token can be drawn for fails by its own fault, and alone") {
  const ModelShape shape = test::tiny_shape();
  const auto device = open_cpu_device(1).value();
  const auto weights = WeightStore::dummy(*device, shape, Format::kF32, 1, {}).value();
  EngineOptions options;
  options.sweep_tokens_max = sweep_tokens_max(shape, {});
  options.kv_bytes = kv_layout(shape, Format::kF32).sequence_bytes(64) * 8;
  const auto scheduler = start_scheduler(Engine::open(*device, *weights, options).value(), {});

  Request barred;
  barred.prompt = {5, 7};
  barred.max_tokens = barred.min_tokens = 4;
  barred.stop_tokens.resize(static_cast<size_t>(shape.vocabulary));
  std::iota(barred.stop_tokens.begin(), barred.stop_tokens.end(), 0);
  Request good;
  good.prompt = {5, 7};
  good.max_tokens = 4;
  good.ignore_eos = true;
  const auto failing = std::make_shared<test::CollectingSink>();
  const auto other = std::make_shared<test::CollectingSink>();
  REQUIRE(scheduler->submit(barred, failing).ok());
  REQUIRE(scheduler->submit(good, other).ok());
  const Finish finish = failing->wait();
  CHECK(finish.reason == FinishReason::kError);
  CHECK(finish.own_fault);
  CHECK(finish.status.message().find("no token can be drawn") != std::string_view::npos);
  CHECK(other->wait().reason == FinishReason::kLength);
  CHECK_FALSE(other->wait().own_fault);
}

}  // namespace
}  // namespace spillway::own_fault_test
