// The entry point of every test program.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/skip.h"

namespace spillway::test {

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt

struct Skips {
  int cases = 0;
  int skipped = 0;
  bool this_case = false;
};

Skips& skips() {
  static Skips counted;
  return counted;
}

class SkipCounter final : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    TestEventListenerBase::testCaseStarting(test);
    skips().this_case = false;
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    TestEventListenerBase::testCaseEnded(stats);
    ++skips().cases;
    skips().skipped += skips().this_case ? 1 : 0;
  }
};
CATCH_REGISTER_LISTENER(SkipCounter)

}  // namespace

void skip(const std::string& why) {
  skips().this_case = true;
  WARN("skipped: " << why);
}

}  // namespace spillway::test

int main(int argc, char** argv) {
  using spillway::test::kSkipped;
  const int result = Catch::Session().run(argc, argv);
  // The number of failures must not look like a skipped test.
  if (result != 0) return result == kSkipped ? 1 : result;
  const auto& skips = spillway::test::skips();
  return skips.cases > 0 && skips.skipped == skips.cases ? kSkipped : 0;
}
