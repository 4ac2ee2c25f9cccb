#include "scheduler/planning/tier_shares.h"

#include <catch2/catch.hpp>

namespace spillway::tier_shares_test {
namespace {

TEST_CASE("shares of tiers are whole per cent that add up to 100") {
  CHECK(percent_of(TierBytes{0, 0, 0}) == TierPercent{100, 0, 0});
  CHECK(percent_of(TierBytes{0, 0, 5}) == TierPercent{0, 0, 100});
  CHECK(percent_of(TierBytes{1, 1, 1}) == TierPercent{33, 33, 34});
  CHECK(percent_of(TierBytes{995, 5, 0}) == TierPercent{99, 1, 0});
  CHECK(percent_of(TierBytes{uint64_t{1} << 62, uint64_t{1} << 62, uint64_t{1} << 63}) ==
        TierPercent{25, 25, 50});
}

TEST_CASE("per cents name no tier that has nothing, and every per cent survives its share") {
  CHECK(percent_of(TierShares{2.0 / 3, 1.0 / 3, 0}) == TierPercent{66, 34, 0});
  CHECK(percent_of(TierShares{2.0 / 3, 0, 1.0 / 3}) == TierPercent{66, 0, 34});
  for (int device = 0; device <= 100; ++device) {
    for (int host = 0; device + host <= 100; ++host) {
      const int disk = 100 - device - host;
      INFO(device << "," << host << "," << disk);
      const TierPercent percent = {device, host, disk};
      CHECK(percent_of(TierShares{device / 100.0, host / 100.0, disk / 100.0}) == percent);
    }
  }
}

TEST_CASE("per cents are written as the flags have them") {
  CHECK(percent_text({20, 0, 80}) == "20,0,80");
}

}  // namespace
}  // namespace spillway::tier_shares_test
