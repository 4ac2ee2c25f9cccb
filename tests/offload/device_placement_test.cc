// Placement over device, host and disk: the fastest tier first, no budget exceeded, and where
// nothing fits a message that names the tier and what would.
#include <catch2/catch.hpp>

#include "kernels/kv_layout.h"
#include "offload/config_files.h"
#include "offload/placement.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

struct Case {
  explicit Case(const char* model) {
    const ModelShape shape = find_model_shape(model).value();
    table = plan_model_file(shape, Format::kF16, MatrixLayout::kRows);
    request.table = &table;
    request.memory_from_flag = true;
    request.disk_bytes = request.disk_free_bytes = 500 * kGiB;
    request.process_bytes = 256 * kMiB;
    request.buffer_bytes = 50 * kMiB;
    request.kv_layer_disk_bytes = kv_layout(shape, Format::kF16).sequence_bytes(512);
    request.kv_layers = static_cast<uint64_t>(shape.layers);
    request.kv_sequence_bytes_max =
        request.kv_layer_disk_bytes * static_cast<uint64_t>(shape.layers);
    request.kv_bytes_wanted = 64 * request.kv_sequence_bytes_max;
    request.device = {.from_flag = true, .process_bytes = 700 * kMiB, .buffer_bytes = 300 * kMiB};
  }
  Result<Placement> place_in(uint64_t device, uint64_t host) {
    request.device->bytes = device;
    request.memory_bytes = host;
    return place(request);
  }
  ModelFileTable table;
  PlacementRequest request;
};

uint64_t device_bytes(const PlacementRequest& r, const Placement& p) {
  return r.device->process_bytes + r.device->buffer_bytes + p.weights.memory_bytes +
         p.device_ring_bytes + p.kv_memory_bytes + p.kv_ring_bytes;
}

uint64_t host_bytes(const PlacementRequest& r, const Placement& p) {
  return r.process_bytes + r.buffer_bytes + p.weights.host_bytes + p.ring_bytes + p.kv_host_bytes +
         p.kv_staging_bytes;
}

TEST_CASE("what fits the device stays there, with nothing to pass through") {
  Case c("opt-1.3b");
  const Placement p = c.place_in(40 * kGiB, 8 * kGiB).value();
  CHECK(p.weights.memory_bytes == c.table.weight_bytes());
  CHECK(p.kv_memory_bytes == c.request.kv_bytes_wanted);
  CHECK(p.kv_host_bytes + p.kv_disk_bytes + p.device_ring_bytes + p.kv_ring_bytes == 0);
}

TEST_CASE("a cache that outgrows the device goes on in host memory") {
  Case c("opt-1.3b");
  const Placement p = c.place_in(8 * kGiB, 20 * kGiB).value();
  CHECK(p.weights.memory_bytes == c.table.weight_bytes());
  CHECK(p.kv_memory_bytes > 0);
  CHECK(p.kv_memory_bytes + p.kv_host_bytes == c.request.kv_bytes_wanted);
  CHECK(p.kv_ring_bytes > 0);
  CHECK(device_bytes(c.request, p) <= 8 * kGiB);
}

TEST_CASE("a model that outgrows the device fills host memory before the disk") {
  Case c("opt-30b");
  const Placement roomy = c.place_in(16 * kGiB, 200 * kGiB).value();
  CHECK(roomy.weights.disk_bytes == 0);
  CHECK(roomy.weights.memory_bytes > 8 * kGiB);
  CHECK(roomy.kv_host_bytes == c.request.kv_bytes_wanted);
  const Placement tight = c.place_in(16 * kGiB, 20 * kGiB).value();
  CHECK(tight.weights.disk_bytes > 0);
  CHECK(tight.weights.host_bytes > 0);
  CHECK(tight.kv_host_bytes >= c.request.kv_sequence_bytes_max);
}

TEST_CASE("every pair of budgets that place() accepts is kept") {
  for (const char* model : {"opt-125m", "opt-6.7b", "opt-30b", "opt-175b"}) {
    Case c(model);
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
        CHECK(device_bytes(c.request, p) <= device);
        CHECK(host_bytes(c.request, p) <= host);
        CHECK(p.kv_memory_bytes + p.kv_host_bytes >= c.request.kv_sequence_bytes_max);
        CHECK(p.ring_bytes >= p.weights.from_disk.ring_min());
        CHECK(p.device_ring_bytes >= p.weights.to_device.ring_min());
        if (p.kv_host_bytes > 0) CHECK(p.kv_ring_bytes >= c.request.kv_layer_disk_bytes);
        CHECK(p.weights.memory_bytes + p.weights.host_bytes + p.weights.disk_bytes ==
              c.table.weight_bytes());
      }
    }
    CHECK(feasible > 20);
  }
}

TEST_CASE("shares of three tiers that the user fixed are kept") {
  Case c("opt-6.7b");
  c.request.weights_disk_share = 0.3;
  c.request.device->weights_host_share = 0.5;
  c.request.kv_disk_share = 0.25;
  c.request.device->kv_host_share = 0.75;
  const Placement p = c.place_in(16 * kGiB, 60 * kGiB).value();
  const auto all = static_cast<double>(c.table.weight_bytes());
  const auto slab = static_cast<double>(kSlabBytesMax);
  CHECK(static_cast<double>(p.weights.disk_bytes) == Approx(0.3 * all).margin(slab));
  CHECK(static_cast<double>(p.weights.host_bytes) == Approx(0.5 * all).margin(slab));
  CHECK(p.kv_memory_bytes == 0);
  CHECK(static_cast<double>(p.kv_host_bytes) / static_cast<double>(p.kv_disk_bytes) ==
        Approx(3).epsilon(0.05));
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
  Case c("opt-30b");
  c.request.device->bytes = kGiB / 2;
  c.request.memory_bytes = 16 * kGiB;
  c.request.device->bytes = named_budget(c.request, "--device-memory");
  CHECK(place(c.request).ok());
  c.request.memory_bytes = kGiB / 4;
  c.request.memory_bytes = named_budget(c.request, "--host-memory");
  CHECK(place(c.request).ok());
}

TEST_CASE("a budget below what is taken whatever lives where is refused, on either tier") {
  Case c("opt-1.3b");
  const uint64_t host = c.request.process_bytes + c.request.buffer_bytes;
  CHECK(c.place_in(40 * kGiB, host).ok());
  for (const uint64_t bytes : {host - 1, 100 * kMiB, uint64_t{0}}) {
    INFO("host " << bytes);
    const Status status = c.place_in(40 * kGiB, bytes).status();
    CHECK_THAT(std::string(status.message()), Catch::Contains("host memory is"));
    // No more than it takes, though without host memory everything must fit the device.
    CHECK(named_budget(c.request, "--host-memory") == host + kMiB);
    c.request.memory_bytes = named_budget(c.request, "--host-memory");
    CHECK(place(c.request).ok());
  }
  // The user's shares, all of them away from the device.
  c.request.weights_disk_share = 0;
  c.request.device->weights_host_share = 1;
  c.request.kv_disk_share = 0;
  c.request.device->kv_host_share = 1;
  const uint64_t device = c.request.device->process_bytes + c.request.device->buffer_bytes;
  for (const uint64_t bytes : {device, device - 1, 100 * kMiB, uint64_t{0}}) {
    INFO("device " << bytes);
    const Status status = c.place_in(bytes, 64 * kGiB).status();
    CHECK_THAT(std::string(status.message()), Catch::Contains("device memory is"));
    c.request.device->bytes = named_budget(c.request, "--device-memory");
    CHECK(place(c.request).ok());
  }
  CHECK(c.place_in(40 * kGiB, host - 1).status().code() == Code::kInfeasible);
}

}  // namespace
}  // namespace spillway
