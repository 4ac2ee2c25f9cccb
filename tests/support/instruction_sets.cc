#include "tests/support/instruction_sets.h"

namespace spillway::test {

int64_t compiled_instruction_sets() {
  return HWY_TARGETS;
}

}  // namespace spillway::test
