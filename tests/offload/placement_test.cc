// Budgets and percentages into bytes: the fastest tier first, nothing above its budget, and where
// nothing fits a message that names what would.
#include "offload/placement.h"

#include <catch2/catch.hpp>

#include "kernels/base/checked_math.h"
#include "kernels/kv_layout.h"
#include "offload/config_files.h"
#include "offload/io/io.h"

namespace spillway::offload_placement_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

struct Case {
  explicit Case(const char* model, Format format = Format::kBF16) {
    const ModelShape shape = find_model_shape(model).value();
    table = plan_model_file(shape, format, MatrixLayout::kPanels16);
    request.table = &table;
    request.host.from_flag = true;
    request.disk_bytes = request.disk_free_bytes = 100 * kGiB;
    request.host.process_bytes = 256 * kMiB;
    request.host.buffer_bytes = 250 * kMiB;
    request.kv_layer_disk_bytes = kv_layout(shape, Format::kBF16).sequence_bytes(shape.positions);
    request.kv_sequence_bytes_max =
        request.kv_layer_disk_bytes * static_cast<uint64_t>(shape.layers);
    request.kv_sequence_disk_bytes =
        round_up(request.kv_layer_disk_bytes, kIoAlignment) * static_cast<uint64_t>(shape.layers);
    request.kv_bytes_wanted = 32 * request.kv_sequence_bytes_max;
  }
  ModelFileTable table;
  PlacementRequest request;
};

TEST_CASE("what fits memory stays there, and the cache gets the rest") {
  Case c("opt-1.3b");
  c.request.host.budget_bytes = 8 * kGiB;
  const Placement placed = place(c.request).value();
  CHECK(placed.weights.disk_bytes == 0);
  CHECK(placed.host_rings.weights == 0);
  CHECK(placed.kv.disk == 0);
  CHECK(placed.taken(c.request).host == 8 * kGiB);
}

TEST_CASE("every budget that place() accepts is kept, from the smallest on") {
  for (const char* model : {"opt-125m", "opt-1.3b", "opt-6.7b", "opt-30b", "opt-175b"}) {
    Case c(model);
    uint64_t last_disk = ~uint64_t{0};
    int feasible = 0;
    for (uint64_t budget = 256 * kMiB; budget <= 512 * kGiB; budget += budget / 8 / kMiB * kMiB) {
      c.request.host.budget_bytes = budget;
      const Result<Placement> placed = place(c.request);
      INFO(model << " in " << budget / kMiB << " MiB: " << placed.status().message());
      if (!placed.ok()) {
        CHECK(placed.status().code() == Code::kInfeasible);
        CHECK(feasible == 0);  // More memory never makes it harder.
        continue;
      }
      ++feasible;
      const Placement& p = placed.value();
      CHECK(p.taken(c.request).host <= budget);
      CHECK(p.kv.disk <= c.request.disk_bytes);
      CHECK(p.kv.device + p.kv.disk >= c.request.kv_sequence_bytes_max);
      if (p.weights.disk_bytes > 0) CHECK(p.host_rings.weights >= p.weights.ring_bytes_min());
      if (p.kv.disk > 0) CHECK(p.host_rings.kv >= c.request.kv_layer_disk_bytes);
      last_disk = p.weights.disk_bytes;
    }
    CHECK(feasible > 0);
    CHECK(last_disk == 0);  // The last budgets hold even the largest model.
  }
}

TEST_CASE("ranges of layers are placed alone, within the budget of each") {
  Case c("opt-6.7b");
  c.request.host.budget_bytes = 4 * kGiB;
  c.request.kv_sequence_disk_bytes /= 2;
  c.request.kv_sequence_bytes_max /= 2;
  uint64_t bytes = 0;
  for (const LayerRange layers : {LayerRange{0, 16}, LayerRange{16, 16}}) {
    c.request.layers = layers;
    const Placement placed = place(c.request).value();
    CHECK(placed.weights.disk_bytes > 0);
    CHECK(placed.taken(c.request).host <= 4 * kGiB);
    const std::vector<uint32_t> groups = weight_groups(c.table);
    for (size_t i = 0; i < groups.size(); ++i) {
      const bool here = has_group(layers, c.table.shape, groups[i]);
      CHECK((placed.weights.tiers[i] != Tier::kNone) == here);
    }
    bytes += placed.weights.memory_bytes + placed.weights.disk_bytes;
  }
  CHECK(bytes == c.table.weight_bytes());
}

TEST_CASE("the smallest budget that the message names fits, and one MiB less does not") {
  for (const char* model : {"opt-125m", "opt-6.7b", "opt-30b"}) {
    Case c(model);
    c.request.host.budget_bytes = 100 * kMiB;
    const std::string message(place(c.request).status().message());
    INFO(message);
    const size_t at = message.find("--host-memory ", message.find("smallest budget"));
    REQUIRE(at != std::string::npos);
    const uint64_t named = std::stoull(message.substr(at + 14)) * kMiB;
    c.request.host.budget_bytes = named;
    CHECK(place(c.request).ok());
    c.request.host.budget_bytes = named - kMiB;
    CHECK_FALSE(place(c.request).ok());
  }
}

TEST_CASE("shares that the user fixed are kept") {
  Case c("opt-1.3b");
  c.request.host.budget_bytes = 16 * kGiB;
  c.request.kv_bytes_wanted = 2 * c.request.kv_sequence_bytes_max;
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    INFO(share);
    c.request.weights_shares = {.disk = share};
    c.request.kv_shares = {.disk = share};
    const Placement placed = place(c.request).value();
    const auto weights = static_cast<double>(c.table.weight_bytes());
    CHECK(static_cast<double>(placed.weights.disk_bytes) ==
          Approx(share * weights).margin(static_cast<double>(kSlabBytesMax)));
    const auto kv = static_cast<double>(placed.kv.disk + placed.kv.device);
    const double layer = static_cast<double>(c.request.kv_layer_disk_bytes);
    CHECK(static_cast<double>(placed.kv.disk) == Approx(share * kv).margin(2 * layer));
    if (share == 0) CHECK(placed.kv.disk == 0);
    if (share == 1) CHECK(placed.kv.device == 0);
  }
}

TEST_CASE("a cache on disk passes through as large a ring as there is memory for") {
  Case c("opt-1.3b");
  c.request.kv_bytes_wanted = 8 * c.request.kv_sequence_bytes_max;
  c.request.weights_shares = {.disk = 0};
  c.request.kv_shares = {.disk = 1};
  uint64_t least = kGiB;
  const auto staging = [&](uint64_t bytes) {
    c.request.host.budget_bytes = bytes;
    const Result<Placement> placed = place(c.request);
    return placed.ok() ? placed->host_rings.kv : 0;
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
  // A larger one where it is worth its memory
  c.request.kv_ring_bytes_good = 700 * kMiB;
  CHECK(staging(least + kGiB) == 700 * kMiB);
  CHECK(staging(least + 400 * kMiB) == 350 * kMiB);
  CHECK(staging(least) == 16 * kMiB);
}

TEST_CASE("fixed shares that do not fit are refused, not changed") {
  Case c("opt-6.7b");
  c.request.host.budget_bytes = 8 * kGiB;
  c.request.weights_shares = {.disk = 0};
  const Status status = place(c.request).status();
  INFO(status.message());
  CHECK(status.code() == Code::kInfeasible);
  c.request.weights_shares = {.disk = 1};
  c.request.kv_shares = {.disk = 1};
  c.request.disk_bytes = 100 * kMiB;
  const Status disk = place(c.request).status();
  INFO(disk.message());
  CHECK(disk.code() == Code::kInfeasible);
  CHECK(disk.message().find("--disk-memory") != std::string_view::npos);
}

// A device with memory of its own.
struct DeviceCase {
  explicit DeviceCase(const char* model) {
    const ModelShape shape = find_model_shape(model).value();
    table = plan_model_file(shape, Format::kF16, MatrixLayout::kRows);
    request.table = &table;
    request.host.from_flag = true;
    request.disk_bytes = request.disk_free_bytes = 500 * kGiB;
    request.host.process_bytes = 256 * kMiB;
    request.host.buffer_bytes = 50 * kMiB;
    request.kv_layer_disk_bytes = kv_layout(shape, Format::kF16).sequence_bytes(512);
    request.kv_sequence_bytes_max =
        request.kv_layer_disk_bytes * static_cast<uint64_t>(shape.layers);
    request.kv_sequence_disk_bytes =
        round_up(request.kv_layer_disk_bytes, kIoAlignment) * static_cast<uint64_t>(shape.layers);
    request.kv_bytes_wanted = 64 * request.kv_sequence_bytes_max;
    request.discrete = true;
    request.device = {.from_flag = true, .process_bytes = 700 * kMiB, .buffer_bytes = 300 * kMiB};
  }
  Result<Placement> place_in(uint64_t device, uint64_t host) {
    request.device.budget_bytes = device;
    request.host.budget_bytes = host;
    return place(request);
  }
  ModelFileTable table;
  PlacementRequest request;
};

TEST_CASE("what fits the device stays there, with nothing to pass through") {
  DeviceCase c("opt-1.3b");
  const Placement p = c.place_in(40 * kGiB, 8 * kGiB).value();
  CHECK(p.weights.memory_bytes == c.table.weight_bytes());
  CHECK(p.kv.device == c.request.kv_bytes_wanted);
  CHECK(p.kv.host + p.kv.disk + p.device_rings.weights + p.device_rings.kv == 0);
}

TEST_CASE("a cache that outgrows the device goes on in host memory") {
  DeviceCase c("opt-1.3b");
  const Placement p = c.place_in(8 * kGiB, 20 * kGiB).value();
  CHECK(p.weights.memory_bytes == c.table.weight_bytes());
  CHECK(p.kv.device > 0);
  CHECK(p.kv.device + p.kv.host == c.request.kv_bytes_wanted);
  CHECK(p.device_rings.kv > 0);
  CHECK(p.taken(c.request).device <= 8 * kGiB);
}

TEST_CASE("a model that outgrows the device fills host memory before the disk") {
  DeviceCase c("opt-30b");
  const Placement roomy = c.place_in(16 * kGiB, 200 * kGiB).value();
  CHECK(roomy.weights.disk_bytes == 0);
  CHECK(roomy.weights.memory_bytes > 8 * kGiB);
  CHECK(roomy.kv.host == c.request.kv_bytes_wanted);
  const Placement tight = c.place_in(16 * kGiB, 20 * kGiB).value();
  CHECK(tight.weights.disk_bytes > 0);
  CHECK(tight.weights.host_bytes > 0);
  CHECK(tight.kv.host >= c.request.kv_sequence_bytes_max);
}

TEST_CASE("every pair of budgets that place() accepts is kept") {
  for (const char* model : {"opt-125m", "opt-6.7b", "opt-30b", "opt-175b"}) {
    DeviceCase c(model);
    int feasible = 0;
    for (uint64_t device = kGiB; device <= 80 * kGiB; device *= 2) {
      for (uint64_t host = kGiB / 2; host <= 512 * kGiB; host *= 2) {
        const Result<Placement> placed = c.place_in(device, host);
        INFO(model << " in " << device / kMiB << " and " << host / kMiB
                   << " MiB: " << placed.status().message());
        if (!placed.ok()) {
          CHECK(placed.status().code() == Code::kInfeasible);
          continue;
        }
        ++feasible;
        const Placement& p = placed.value();
        CHECK(p.taken(c.request).device <= device);
        CHECK(p.taken(c.request).host <= host);
        CHECK(p.kv.device + p.kv.host >= c.request.kv_sequence_bytes_max);
        CHECK(p.host_rings.weights >= p.weights.from_disk.ring_min());
        CHECK(p.device_rings.weights >= p.weights.to_device.ring_min());
        if (p.kv.host > 0) CHECK(p.device_rings.kv >= c.request.kv_layer_disk_bytes);
        CHECK(p.weights.memory_bytes + p.weights.host_bytes + p.weights.disk_bytes ==
              c.table.weight_bytes());
      }
    }
    CHECK(feasible > 20);
  }
}

TEST_CASE("shares of three tiers that the user fixed are kept") {
  DeviceCase c("opt-6.7b");
  c.request.weights_shares = {.host = 0.5, .disk = 0.3};
  c.request.kv_shares = {.host = 0.75, .disk = 0.25};
  const Placement p = c.place_in(16 * kGiB, 60 * kGiB).value();
  const auto all = static_cast<double>(c.table.weight_bytes());
  const auto slab = static_cast<double>(kSlabBytesMax);
  CHECK(static_cast<double>(p.weights.disk_bytes) == Approx(0.3 * all).margin(slab));
  CHECK(static_cast<double>(p.weights.host_bytes) == Approx(0.5 * all).margin(slab));
  CHECK(p.kv.device == 0);
  CHECK(static_cast<double>(p.kv.host) / static_cast<double>(p.kv.disk) == Approx(3).epsilon(0.05));
}

// Of a refusal, the budget that it names.
uint64_t named_budget(const PlacementRequest& request, const std::string& flag) {
  const Status status = place(request).status();
  const std::string message(status.message());
  INFO(message);
  CHECK(status.code() == Code::kInfeasible);
  const size_t at = message.find(flag + " ", message.find("smallest budget"));
  REQUIRE(at != std::string::npos);
  return std::stoull(message.substr(at + flag.size() + 1)) * kMiB;
}

TEST_CASE("the smallest budget of the tier that is short fits") {
  DeviceCase c("opt-30b");
  c.request.device.budget_bytes = kGiB / 2;
  c.request.host.budget_bytes = 16 * kGiB;
  c.request.device.budget_bytes = named_budget(c.request, "--device-memory");
  CHECK(place(c.request).ok());
  c.request.host.budget_bytes = kGiB / 4;
  c.request.host.budget_bytes = named_budget(c.request, "--host-memory");
  CHECK(place(c.request).ok());
}

TEST_CASE("a budget below what is taken whatever lives where is refused, on either tier") {
  DeviceCase c("opt-1.3b");
  const uint64_t host = c.request.host.process_bytes + c.request.host.buffer_bytes;
  CHECK(c.place_in(40 * kGiB, host).ok());
  for (const uint64_t bytes : {host - 1, 100 * kMiB, uint64_t{0}}) {
    INFO("host " << bytes);
    const Status status = c.place_in(40 * kGiB, bytes).status();
    CHECK_THAT(std::string(status.message()), Catch::Contains("host memory is"));
    // No more than it takes, though without host memory everything must fit the device.
    CHECK(named_budget(c.request, "--host-memory") == host + kMiB);
    c.request.host.budget_bytes = named_budget(c.request, "--host-memory");
    CHECK(place(c.request).ok());
  }
  // The user's shares, all of them away from the device.
  c.request.weights_shares = {.host = 1, .disk = 0};
  c.request.kv_shares = {.host = 1, .disk = 0};
  const uint64_t device = c.request.device.process_bytes + c.request.device.buffer_bytes;
  for (const uint64_t bytes : {device, device - 1, 100 * kMiB, uint64_t{0}}) {
    INFO("device " << bytes);
    const Status status = c.place_in(bytes, 64 * kGiB).status();
    CHECK_THAT(std::string(status.message()), Catch::Contains("device memory is"));
    c.request.device.budget_bytes = named_budget(c.request, "--device-memory");
    CHECK(place(c.request).ok());
  }
  CHECK(c.place_in(40 * kGiB, host - 1).status().code() == Code::kInfeasible);
}

}  // namespace
}  // namespace spillway::offload_placement_test
