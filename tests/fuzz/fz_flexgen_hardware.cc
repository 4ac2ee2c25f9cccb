// FlexGen's hardware constants: any text is read or refused, and the cost of what is accepted is a
// time.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/base/check.h"
#include "policy/flexgen/flexgen_cost.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spillway;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto hardware = parse_flexgen_hardware(text, "fuzz");
  if (!hardware.ok()) return 0;
  FlexgenProblem problem;
  problem.hardware = hardware.value();
  problem.shape.layers = 2;
  problem.shape.hidden = 64;
  problem.shape.heads = 2;
  problem.shape.mlp = 256;
  problem.prompt_tokens = problem.new_tokens = 16;
  const FlexgenCost cost =
      flexgen_cost(problem, {2, 2}, {{0.5, 0.25, 0.25}, {0.5, 0.25, 0.25}, {0.5, 0.5, 0}});
  SPILLWAY_CHECK(std::isfinite(cost.total_seconds) && cost.total_seconds > 0);
  return 0;
}
