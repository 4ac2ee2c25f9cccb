// Tests of kernels that are compiled for several instruction sets.
#pragma once

#include <hwy/targets.h>

#include <catch2/catch.hpp>
#include <cstdint>

namespace spillway::test {

// Highway's targets that the kernels of this build were compiled for, one bit each.
int64_t compiled_instruction_sets();

// Runs `body` with every instruction set that this CPU and build have.
template <class Body>
void for_each_instruction_set(const Body& body) {
  const int64_t all = hwy::SupportedTargets() & compiled_instruction_sets();
  for (int64_t left = all; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    INFO("instruction set " << hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace spillway::test
