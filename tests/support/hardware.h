// The hardware profiles of tests: the one place that fills in a HardwareProfile.
#pragma once

#include <utility>
#include <vector>

#include "policy/hardware_profile.h"

namespace spillway::test {

// Measured without any spread.
inline Figure figure(double value) {
  return {value, value, value, 1, ""};
}

// What simple machines differ in: bytes or operations a second.
struct Speeds {
  double memory_read = 40e9;
  double prompt_attention = 100e9, decode_attention = 20e9;
  double disk_read = 2e9, disk_write = 1e9;
  std::vector<std::pair<int64_t, double>> products;  // By rows
  std::vector<Format> formats = {Format::kBF16};     // That these are the same in
};

// A CPU with round figures to compute with by hand.
inline HardwareProfile simple_hardware(const Speeds& speeds) {
  HardwareProfile hardware;
  hardware.name = "test";
  hardware.compute.kind = "cpu";
  hardware.compute.memory_read = hardware.host.memory_read = figure(speeds.memory_read);
  hardware.compute.prompt_attention = figure(speeds.prompt_attention);
  hardware.compute.decode_attention = figure(speeds.decode_attention);
  for (const auto& [rows, rate] : speeds.products) {
    for (const Format format : speeds.formats) {
      hardware.compute.matrix.push_back({format, rows, 4096, 4096, figure(rate)});
    }
  }
  hardware.disk.read = {{2 << 20, 32, figure(speeds.disk_read)}};
  hardware.disk.write = {{2 << 20, 32, figure(speeds.disk_write)}};
  return hardware;
}

// The machine of the cost model's tests: 0.1 ns a weight for one row, 0.2 for 16, 2 for 256.
inline HardwareProfile cost_machine() {
  HardwareProfile hardware = simple_hardware(
      {.products = {{1, 2 / 0.1e-9}, {16, 2.0 * 16 / 0.2e-9}, {256, 2.0 * 256 / 2e-9}}});
  hardware.disk.read.push_back({1 << 20, 1, figure(1e9)});
  return hardware;
}

// One with every kind of figure in it, most with a spread and some with a source.
inline HardwareProfile sample_hardware(bool discrete) {
  const auto measured = [](double value) { return Figure{value, value * 0.9, value / 0.7, 5, ""}; };
  const auto known = [](double value) { return Figure{value, 0, 0, 0, "a datasheet"}; };
  HardwareProfile profile;
  profile.name = discrete ? "a device \"of\" tests" : "a CPU of tests";
  if (!discrete) profile.measured_at = "2026-01-31T12:00:00Z";
  profile.compute = {.kind = discrete ? "cuda" : "cpu",
                     .memory_bytes = known(16e9),
                     .memory_free_bytes = known(15e9),
                     .memory_read = measured(300e9 / 7),
                     .matrix = {{Format::kF16, 1, 4096, 4096, measured(1e11 / 3)},
                                {Format::kF16, 16, 4096, 4096, measured(1.6e12)},
                                {Format::kQ4, 1, 16384, 4096, measured(2e11)}},
                     .prompt_attention = measured(1e12),
                     .decode_attention = known(2e11),
                     .decode_attention_q4 = {},
                     .decode_attention_q8 = {}};
  if (!discrete) {
    profile.compute.decode_attention_q4 = measured(6e9);
    profile.compute.decode_attention_q8 = measured(9e9);
    profile.compute.decode_attention_shared = measured(5e9);
    profile.compute.decode_attention_q4_shared = measured(3e9);
    profile.compute.decode_attention_q8_shared = measured(4e9);
  }
  profile.host = {.memory_bytes = known(64e9),
                  .memory_free_bytes = known(60e9),
                  .memory_read = measured(4e10),
                  .decode_attention = measured(3e10)};
  if (discrete) {
    profile.link = {measured(12e9),
                    measured(11e9),
                    measured(20e9),
                    {{uint64_t{1} << 20, measured(7e9), measured(6e9)}},
                    measured(3e4)};
    profile.compute.small_ops = measured(2e5);
  }
  profile.disk = {.free_bytes = known(1e12),
                  .read = {{1 << 20, 1, measured(1e9)}, {1 << 20, 8, measured(2e9)}},
                  .write = {{1 << 20, 1, measured(5e8)}},
                  .processor = {}};
  if (!discrete) profile.disk.processor = measured(1.5e10);
  return profile;
}

}  // namespace spillway::test
