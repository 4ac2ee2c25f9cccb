// A small model's plan for the cost model's tests, and the machine that it is costed on.
#pragma once

#include "policy/cost_model.h"
#include "tests/support/hardware.h"
#include "tests/support/tiny_shape.h"

namespace spillway::test {

inline CostedPlan costed_plan() {
  CostedPlan plan;
  plan.shape = make_shape({.layers = 10,
                           .hidden = 1000,
                           .heads = 10,
                           .mlp = 4000,
                           .vocabulary = 5000,
                           .positions = 2048});
  plan.format = Format::kBF16;
  plan.weight_bytes = 250'000'000;
  plan.kv_row_bytes = 40'000;
  plan.kv_sent_bytes = 640'000;
  return plan;
}

}  // namespace spillway::test
