// Budgets and percentages into bytes: the fastest tier first, nothing above its budget, and where
// nothing fits a message that names what would.
#include "offload/placement.h"

#include <catch2/catch.hpp>

#include "kernels/kv_layout.h"
#include "offload/config_files.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

struct Case {
  explicit Case(const char* model, Format format = Format::kBF16) {
    const ModelShape shape = find_model_shape(model).value();
    table = plan_model_file(shape, format, MatrixLayout::kPanels16);
    request.table = &table;
    request.memory_from_flag = true;
    request.disk_bytes = request.disk_free_bytes = 100 * kGiB;
    request.process_bytes = 256 * kMiB;
    request.buffer_bytes = 250 * kMiB;
    request.kv_layer_disk_bytes = kv_layout(shape, Format::kBF16).sequence_bytes(shape.positions);
    request.kv_layers = static_cast<uint64_t>(shape.layers);
    request.kv_sequence_bytes_max =
        request.kv_layer_disk_bytes * static_cast<uint64_t>(shape.layers);
    request.kv_bytes_wanted = 32 * request.kv_sequence_bytes_max;
  }
  ModelFileTable table;
  PlacementRequest request;
};

TEST_CASE("what fits memory stays there, and the cache gets the rest") {
  Case c("opt-1.3b");
  c.request.memory_bytes = 8 * kGiB;
  const Placement placed = place(c.request).value();
  CHECK(placed.weights.disk_bytes == 0);
  CHECK(placed.ring_bytes == 0);
  CHECK(placed.kv_disk_bytes == 0);
  CHECK(placed.memory_bytes(c.request) == 8 * kGiB);
}

TEST_CASE("every budget that place() accepts is kept, from the smallest on") {
  for (const char* model : {"opt-125m", "opt-1.3b", "opt-6.7b", "opt-30b", "opt-175b"}) {
    Case c(model);
    uint64_t last_disk = ~uint64_t{0};
    int feasible = 0;
    for (uint64_t budget = 256 * kMiB; budget <= 512 * kGiB; budget += budget / 8 / kMiB * kMiB) {
      c.request.memory_bytes = budget;
      const Result<Placement> placed = place(c.request);
      INFO(model << " in " << budget / kMiB << " MiB: " << placed.status().message());
      if (!placed.ok()) {
        CHECK(placed.status().code() == Code::kInfeasible);
        CHECK(feasible == 0);  // More memory never makes it harder.
        continue;
      }
      ++feasible;
      const Placement& p = placed.value();
      CHECK(p.memory_bytes(c.request) <= budget);
      CHECK(p.kv_disk_bytes <= c.request.disk_bytes);
      CHECK(p.kv_memory_bytes + p.kv_disk_bytes >= c.request.kv_sequence_bytes_max);
      if (p.weights.disk_bytes > 0) CHECK(p.ring_bytes >= p.weights.ring_bytes_min());
      if (p.kv_disk_bytes > 0) CHECK(p.kv_staging_bytes >= c.request.kv_layer_disk_bytes);
      last_disk = p.weights.disk_bytes;
    }
    CHECK(feasible > 0);
    CHECK(last_disk == 0);  // The last budgets hold even the largest model.
  }
}

TEST_CASE("the smallest budget that the message names fits, and one MiB less does not") {
  for (const char* model : {"opt-125m", "opt-6.7b", "opt-30b"}) {
    Case c(model);
    c.request.memory_bytes = 100 * kMiB;
    const std::string message(place(c.request).status().message());
    INFO(message);
    const size_t at = message.find("--host-memory ", message.find("smallest budget"));
    REQUIRE(at != std::string::npos);
    const uint64_t named = std::stoull(message.substr(at + 14)) * kMiB;
    c.request.memory_bytes = named;
    CHECK(place(c.request).ok());
    c.request.memory_bytes = named - kMiB;
    CHECK_FALSE(place(c.request).ok());
  }
}

TEST_CASE("shares that the user fixed are kept") {
  Case c("opt-1.3b");
  c.request.memory_bytes = 16 * kGiB;
  c.request.kv_bytes_wanted = 2 * c.request.kv_sequence_bytes_max;
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    INFO(share);
    c.request.weights_disk_share = share;
    c.request.kv_disk_share = share;
    const Placement placed = place(c.request).value();
    const auto weights = static_cast<double>(c.table.weight_bytes());
    CHECK(static_cast<double>(placed.weights.disk_bytes) ==
          Approx(share * weights).margin(static_cast<double>(kSlabBytesMax)));
    const auto kv = static_cast<double>(placed.kv_disk_bytes + placed.kv_memory_bytes);
    const double layer = static_cast<double>(c.request.kv_layer_disk_bytes);
    CHECK(static_cast<double>(placed.kv_disk_bytes) == Approx(share * kv).margin(2 * layer));
    if (share == 0) CHECK(placed.kv_disk_bytes == 0);
    if (share == 1) CHECK(placed.kv_memory_bytes == 0);
  }
}

TEST_CASE("a cache on disk passes through as large a ring as there is memory for") {
  Case c("opt-1.3b");
  c.request.kv_bytes_wanted = 8 * c.request.kv_sequence_bytes_max;
  c.request.weights_disk_share = 0;
  c.request.kv_disk_share = 1;
  uint64_t least = kGiB;
  const auto staging = [&](uint64_t bytes) {
    c.request.memory_bytes = bytes;
    const Result<Placement> placed = place(c.request);
    return placed.ok() ? placed->kv_staging_bytes : 0;
  };
  while (staging(least) == 0) least += kMiB;
  // One layer of one sequence of 2,048 positions, for which the engine must wait.
  CHECK(staging(least) == 16 * kMiB);
  CHECK(staging(least + 17 * kMiB) == 32 * kMiB);
  CHECK(staging(least + 47 * kMiB) == 32 * kMiB);
  CHECK(staging(least + 49 * kMiB) == 64 * kMiB);
  CHECK(staging(least + 111 * kMiB) == 64 * kMiB);
  CHECK(staging(least + 241 * kMiB) == 256 * kMiB);
  CHECK(staging(least + kGiB) == 256 * kMiB);
}

TEST_CASE("fixed shares that do not fit are refused, not changed") {
  Case c("opt-6.7b");
  c.request.memory_bytes = 8 * kGiB;
  c.request.weights_disk_share = 0;
  const Status status = place(c.request).status();
  INFO(status.message());
  CHECK(status.code() == Code::kInfeasible);
  c.request.weights_disk_share = 1;
  c.request.kv_disk_share = 1;
  c.request.disk_bytes = 100 * kMiB;
  const Status disk = place(c.request).status();
  INFO(disk.message());
  CHECK(disk.code() == Code::kInfeasible);
  CHECK(disk.message().find("--disk-memory") != std::string_view::npos);
}

}  // namespace
}  // namespace spillway
