// A hardware profile for tests, with every kind of figure in it.
#pragma once

#include "policy/hardware_profile.h"

namespace spillway::test {

inline HardwareProfile sample_hardware(bool own_memory) {
  const auto measured = [](double value) { return Figure{value, value * 0.9, value / 0.7, 5, ""}; };
  const auto known = [](double value) { return Figure{value, 0, 0, 0, "a datasheet"}; };
  HardwareProfile profile;
  profile.name = own_memory ? "a device \"of\" tests" : "a CPU of tests";
  if (!own_memory) profile.measured_at = "2026-01-31T12:00:00Z";
  profile.compute = {.kind = own_memory ? "cuda" : "cpu",
                     .memory_bytes = known(16e9),
                     .memory_free_bytes = known(15e9),
                     .memory_read = measured(300e9 / 7),
                     .matrix = {{Format::kF16, 1, 4096, 4096, measured(1e11 / 3)},
                                {Format::kF16, 16, 4096, 4096, measured(1.6e12)},
                                {Format::kQ4, 1, 16384, 4096, measured(2e11)}},
                     .prompt_attention = measured(1e12),
                     .decode_attention = known(2e11),
                     .decode_attention_q4 = {}};
  if (!own_memory) profile.compute.decode_attention_q4 = measured(6e9);
  profile.host = {.memory_bytes = known(64e9),
                  .memory_free_bytes = known(60e9),
                  .memory_read = measured(4e10),
                  .decode_attention = measured(3e10)};
  if (own_memory) {
    profile.link = {measured(12e9),
                    measured(11e9),
                    measured(20e9),
                    {{uint64_t{1} << 20, measured(7e9), measured(6e9)}}};
  }
  profile.disk = {.free_bytes = known(1e12),
                  .read = {{1 << 20, 1, measured(1e9)}, {1 << 20, 8, measured(2e9)}},
                  .write = {{1 << 20, 1, measured(5e8)}},
                  .processor = {}};
  if (!own_memory) profile.disk.processor = measured(1.5e10);
  return profile;
}

}  // namespace spillway::test
