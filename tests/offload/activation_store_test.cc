// Rows of micro-batches that pass through device, host and disk: each use sees what the last left.
#include "offload/activation_store.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "tests/support/fake_io.h"
#include "tests/support/test_devices.h"

namespace spillway::activation_store_test {
namespace {

constexpr int64_t kColumns = 8;
const std::vector<int64_t> kRows = {3, 2, 3, 1, 3};

ActivationStoreOptions options_for(const Device& device, double host, double disk) {
  ActivationStoreOptions options;
  options.columns = kColumns;
  options.sweep_rows_max = 12;
  options.batch_rows_max = 3;
  options.disk_share = disk;
  options.discrete = device.discrete();
  options.host_share = options.discrete ? host : 0;
  return options;
}

// A store on a disk that answers in any order.
struct Opened {
  Opened(Device& device, ActivationStoreOptions options, uint64_t seed)
      : io({.seed = seed, .aligned_only = true}),
        queue(io, nullptr),
        file(test::memory_file(activation_bytes(options).disk + 1)),
        compute(device.new_stream("compute")) {
    options.transfers = &queue;
    store = ActivationStore::open(device, *compute, options, &file).value();
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes) const {
    compute->copy(to, from, bytes);
    REQUIRE(compute->record().wait().ok());
  }
  void write(const MatrixView& rows, float value) const {
    const std::vector<float> values(static_cast<size_t>(rows.rows * kColumns), value);
    copy(rows.data, reinterpret_cast<const std::byte*>(values.data()), values.size() * 4);
  }
  // The one value that all rows have; -1: they differ.
  float read(const MatrixView& rows) const {
    std::vector<float> values(static_cast<size_t>(rows.rows * kColumns));
    copy(reinterpret_cast<std::byte*>(values.data()), rows.data, values.size() * 4);
    for (const float value : values) {
      if (value != values[0]) return -1;
    }
    return values[0];
  }

  test::FakeIo io;
  TransferQueue queue;
  const File file;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<ActivationStore> store;
};

TEST_CASE("activations: every pass sees what the last one left, on all tiers") {
  const double host = GENERATE(0.0, 0.4, 1.0);
  const double disk = GENERATE(0.0, 0.4, 1.0);
  if (host + disk > 1) return;
  const bool overlap = GENERATE(true, false);
  for (const auto& device : test::test_devices()) {
    ActivationStoreOptions options = options_for(*device, host, disk);
    options.overlap = overlap;
    INFO(device->name() << ", host " << host << ", disk " << disk);
    const Opened opened(*device, options, 7);
    for (int sweep = 0; sweep < 3; ++sweep) {
      opened.store->begin(kRows, 4);
      for (int pass = 0; pass < 4; ++pass) {
        for (size_t i = 0; i < kRows.size(); ++i) {
          const auto rows = opened.store->acquire();
          REQUIRE(rows.ok());
          REQUIRE(rows->rows == kRows[i]);
          const auto expected =
              static_cast<float>(100 * sweep + 10 * std::min(pass - 1, 1)) + static_cast<float>(i);
          if (pass > 0) CHECK(opened.read(rows.value()) == expected);
          const bool changed = pass < 2;  // The last two passes only look.
          if (changed) {
            opened.write(rows.value(),
                         static_cast<float>(100 * sweep + 10 * pass) + static_cast<float>(i));
          }
          opened.store->release(changed);
        }
      }
      REQUIRE(opened.store->end_sweep().ok());
    }
    CHECK((opened.store->bytes_written() > 0) == (disk > 0));
  }
}

TEST_CASE("activations: a failed read is an error, and the next sweep works") {
  const auto device = open_cpu_device(1).value();
  Opened opened(*device, options_for(*device, 0, 1), 3);
  opened.io.add_fault({.kind = IoRequest::Kind::kRead});
  const auto sweep = [&]() -> Status {
    const std::vector<int64_t> rows_of_batches(12, 1);  // More than the ring holds
    opened.store->begin(rows_of_batches, 2);
    for (size_t use = 0; use < 2 * rows_of_batches.size(); ++use) {
      SPILLWAY_ASSIGN_OR_RETURN(const MatrixView rows, opened.store->acquire());
      opened.write(rows, 5);
      opened.store->release(true);
    }
    return opened.store->end_sweep();
  };
  const Status failed = sweep();
  opened.store->abandon();
  opened.io.clear_faults();
  CHECK(failed.code() == Code::kIoError);
  CHECK(sweep().ok());
}

TEST_CASE("activations: bytes are where the shares say") {
  ActivationStoreOptions options;
  options.columns = 1024;
  options.sweep_rows_max = 100;
  options.batch_rows_max = 10;
  constexpr uint64_t kRow = 4096;
  constexpr uint64_t kRing = 4 * (10 * kRow + kIoAlignment);
  ActivationBytes bytes = activation_bytes(options);
  CHECK(bytes.memory == 100 * kRow);
  CHECK(bytes.host + bytes.staging + bytes.device_ring + bytes.disk == 0);
  // Each share to within a micro-batch.
  options.disk_share = 0.5;
  bytes = activation_bytes(options);
  CHECK(bytes.memory == 60 * kRow);
  CHECK(bytes.staging == kRing);
  CHECK(bytes.disk == 60 * kRow + 100 * kIoAlignment);
  options.discrete = true;
  options.host_share = 0.3;
  bytes = activation_bytes(options);
  CHECK(bytes.memory == 30 * kRow);
  CHECK(bytes.host == 40 * kRow);
  CHECK(bytes.device_ring == kRing);
}

}  // namespace
}  // namespace spillway::activation_store_test
