#include "scheduler/kv_needs.h"

#include <catch2/catch.hpp>

#include "kernels/device.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/tiny_shape.h"

namespace spillway::kv_needs_test {
namespace {

TEST_CASE("a sequence that grows is likely to need less than it may") {
  const auto device = open_cpu_device(1).value();
  const KvLayout layout{2, 8, Format::kF16};
  KvCacheOptions options;
  options.layout = layout;
  options.layers = {0, 3};
  options.memory_bytes = uint64_t{1} << 20;
  const auto cache = KvCache::open(*device, options).value();
  const auto sequence = [&](const KvBudget& budget) {
    Request request;
    request.prompt.assign(20, 1);
    request.max_tokens = 400;
    SequenceKv promise;
    promise.positions = 419;
    promise.budget = budget;
    return Sequence(RequestId{1}, std::move(request), std::make_shared<test::CollectingSink>(),
                    test::tiny_shape(), promise, 0, 0);
  };
  const Sequence full = sequence({}), limited = sequence({10, 10, true});
  KvNeeds needs(*cache, true);
  CHECK(needs.grows(full));
  CHECK_FALSE(needs.grows(limited));
  CHECK(needs.most_bytes(full) == 3 * layout.sequence_bytes(419));
  CHECK(needs.aside_bytes(full) == needs.most_bytes(full) + 3 * kIoAlignment);
  CHECK(needs.likely_bytes(full) == 3 * layout.sequence_bytes(20 + 200));
  CHECK(needs.positions_at_first(full) == 21);
  CHECK(needs.likely_bytes(limited) == needs.most_bytes(limited));
  CHECK(needs.positions_at_first(limited) == 0);
  needs.count(600, 49);  // 20 tokens each
  CHECK(needs.likely_bytes(full) == 3 * layout.sequence_bytes(20 + 10));
  const KvNeeds whole(*cache, false);
  CHECK_FALSE(whole.grows(full));
  CHECK(whole.likely_bytes(full) == whole.most_bytes(full));
  CHECK(whole.positions_at_first(full) == 0);
}

}  // namespace
}  // namespace spillway::kv_needs_test
