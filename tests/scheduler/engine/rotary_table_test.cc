// The rows of a sweep's tokens, on the CPU and on a discrete device.
#include "scheduler/engine/rotary_table.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/rotary.h"
#include "tests/support/test_devices.h"
#include "tests/support/tiny_shape.h"

namespace spillway::rotary_table_test {
namespace {

TEST_CASE("each token of a sweep has the row of its position") {
  ModelShape shape = test::rotary_shape();
  shape.rotary_layers = {1, 0, 1};
  const std::vector<int32_t> prompt(5, 1), step(1, 2);
  KvSequence first, second;
  const std::vector<SweepItem> items = {{.tokens = prompt, .position = 0, .kv = &first},
                                        {.tokens = step, .position = 9, .kv = &second}};
  const auto columns = static_cast<size_t>(shape.rotary.dims);
  std::vector<float> expected(6 * columns);
  for (size_t i = 0; i < 6; ++i) {
    fill_rotary_row(shape.rotary.frequencies, 1.0f, i < 5 ? static_cast<int64_t>(i) : 9,
                    std::span(expected).subspan(i * columns, columns));
  }
  for (const auto& device : test::test_devices()) {
    INFO(device->name());
    const auto stream = device->new_stream("test");
    const uint64_t bytes = RotaryTable::bytes(shape, 16);
    CHECK(bytes >= 16 * columns * sizeof(float));
    Buffer memory = device->allocate(Memory::kDevice, bytes).value();
    Buffer host = device->allocate(Memory::kPinned, device->discrete() ? bytes : 0).value();
    RotaryTable table(*stream, shape, memory.data(), std::move(host));
    table.fill(items);
    const ConstMatrixView rows = table.rows(0, 2, 4);
    CHECK(rows.rows == 4);
    CHECK(rows.columns == shape.rotary.dims);
    std::vector<float> found(4 * columns);
    stream->copy(reinterpret_cast<std::byte*>(found.data()), rows.data,
                 found.size() * sizeof(float));
    REQUIRE(stream->record().wait().ok());
    CHECK(std::equal(found.begin(), found.end(), expected.begin() + 2 * columns));
    CHECK(table.rows(1, 2, 4).columns == 0);  // The layer does not rotate.
  }
}

TEST_CASE(
    "a sequence that may outgrow LongRoPE's first frequencies has the second from the start") {
  ModelShape shape = test::rotary_shape();
  shape.rotary.long_frequencies = shape.rotary.frequencies;
  shape.rotary.long_frequencies[0] = 0.5f;
  shape.rotary.switch_length = 20;
  const std::vector<int32_t> step(1, 2);
  KvSequence stays, grows;
  stays.rows = 20;
  grows.rows = 21;
  const std::vector<SweepItem> items = {{.tokens = step, .position = 3, .kv = &stays},
                                        {.tokens = step, .position = 3, .kv = &grows}};
  const auto device = open_cpu_device(1).value();
  const auto stream = device->new_stream("test");
  Buffer memory = device->allocate(Memory::kDevice, RotaryTable::bytes(shape, 4)).value();
  RotaryTable table(*stream, shape, memory.data(), Buffer());
  table.fill(items);
  const auto row = [&](int64_t index) {
    return *reinterpret_cast<const float*>(table.rows(0, index, 1).data);
  };
  CHECK(row(0) == std::cos(3 * shape.rotary.frequencies[0]));
  CHECK(row(1) == std::cos(1.5f));
}

TEST_CASE("under dynamic scaling each token of a draft has the length that it has alone") {
  ModelShape shape = test::rotary_shape();
  shape.rotary.dynamic_factor = 2;
  shape.rotary.switch_length = 8;
  shape.rotary.theta = 10000;
  const std::vector<int32_t> draft(4, 2), step(1, 2);
  const std::vector<SampleRule> rules(4);
  KvSequence kv;
  std::vector<SweepItem> items = {{.tokens = draft, .position = 6, .kv = &kv, .samples = rules}};
  for (int64_t i = 0; i < 4; ++i) items.push_back({.tokens = step, .position = 6 + i, .kv = &kv});
  const auto device = open_cpu_device(1).value();
  const auto stream = device->new_stream("test");
  Buffer memory = device->allocate(Memory::kDevice, RotaryTable::bytes(shape, 8)).value();
  RotaryTable table(*stream, shape, memory.data(), Buffer());
  table.fill(items);
  const auto row = [&](int64_t index) {
    const auto* first = reinterpret_cast<const float*>(table.rows(0, index, 1).data);
    return std::vector<float>(first, first + shape.rotary.dims);
  };
  for (int64_t i = 0; i < 4; ++i) CHECK(row(i) == row(4 + i));
  CHECK(row(3) != row(0));
}

}  // namespace
}  // namespace spillway::rotary_table_test
