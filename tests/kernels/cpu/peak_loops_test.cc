// The loops that measure the peaks of matrix units (kernels/cpu/peak_loops.cc) run, and do the work
// that they say.
#include "kernels/cpu/peak_loops.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string_view>

#include "tests/support/amx_emulator.h"

namespace spillway::peak_loops_test {
namespace {

TEST_CASE("matrix units have loops for bf16 and bytes, with the most operations of a turn") {
  constexpr int64_t kTurns = 3;
  // A configuration, eight tiles cleared, six products a turn and the release
  constexpr uint64_t kInstructions = 1 + 8 + 6 * kTurns + 1;
  const auto loops = cpu::peak_loops();
  const std::pair<std::string_view, cpu::Arithmetic> wanted[] = {
      {"TDPBF16PS", cpu::Arithmetic::kBF16}, {"TDPBSUD", cpu::Arithmetic::kInt8}};
  for (const auto& [instruction, arithmetic] : wanted) {
    INFO(instruction);
    const auto found = std::find_if(loops.begin(), loops.end(), [&](const auto& loop) {
      return loop.instruction == instruction;
    });
    REQUIRE(found != loops.end());
    CHECK(found->arithmetic == arithmetic);
    // Multiply-adds of 16 x 16 sums and 64 bytes of a row
    CHECK(found->operations == 6 * 2 * 16 * 16 * (arithmetic == cpu::Arithmetic::kInt8 ? 64 : 32));
    const uint64_t before = test::emulated_tile_instructions();
    found->run(kTurns);
    const uint64_t emulated = test::emulated_tile_instructions() - before;
    CHECK(emulated == (test::has_tile_instructions() ? 0 : kInstructions));
  }
}

}  // namespace
}  // namespace spillway::peak_loops_test
