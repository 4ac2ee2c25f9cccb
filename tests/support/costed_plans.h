// A small model's plan and a machine for the cost model's tests.
#pragma once

#include "policy/cost_model.h"

namespace spillway::test {

inline Figure figure(double value) {
  return {value, value, value, 1, ""};
}

inline HardwareProfile cost_machine() {
  HardwareProfile hardware;
  hardware.name = "test";
  hardware.compute.kind = "cpu";
  hardware.compute.memory_read = figure(40e9);
  hardware.host.memory_read = figure(40e9);
  hardware.compute.prompt_attention = figure(100e9);
  hardware.compute.decode_attention = figure(20e9);
  for (const int64_t rows : {1, 16, 256}) {
    const double seconds = rows == 1 ? 0.1e-9 : rows == 16 ? 0.2e-9 : 2e-9;
    hardware.compute.matrix.push_back(
        {Format::kBF16, rows, 4096, 4096, figure(2.0 * static_cast<double>(rows) / seconds)});
  }
  hardware.disk.read.push_back({2 << 20, 32, figure(2e9)});
  hardware.disk.read.push_back({1 << 20, 1, figure(1e9)});
  hardware.disk.write.push_back({2 << 20, 32, figure(1e9)});
  return hardware;
}

inline CostedPlan costed_plan() {
  CostedPlan plan;
  plan.shape.layers = 10;
  plan.shape.hidden = plan.shape.embedding = 1000;
  plan.shape.heads = plan.shape.kv_heads = 10;
  plan.shape.head_size = 100;
  plan.shape.mlp = 4000;
  plan.shape.vocabulary = 5000;
  plan.shape.positions = 2048;
  plan.format = Format::kBF16;
  plan.weight_bytes = 250'000'000;
  plan.kv_row_bytes = 40'000;
  plan.kv_sent_bytes = 640'000;
  return plan;
}

}  // namespace spillway::test
