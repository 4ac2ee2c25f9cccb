#include "scheduler/planning/tier_shares.h"

#include <cmath>

namespace spillway {

TierPercent percent_of(const TierShares& shares) {
  constexpr double kNone = 1e-9;  // A share below this is a rounding error.
  if (shares.disk <= kNone && shares.host <= kNone) return kAllOnDevice;
  const auto whole = [&](double share) {
    return static_cast<int>(std::floor(100 * share + kNone));
  };
  TierPercent percent = {whole(shares.device), whole(shares.host), 0};
  const int rest = 100 - percent[0] - percent[1];
  percent[shares.disk > kNone ? 2 : 1] += rest;
  return percent;
}

TierPercent percent_of(const TierBytes& bytes) {
  const double sum = static_cast<double>(bytes.device) + static_cast<double>(bytes.host) +
                     static_cast<double>(bytes.disk);
  if (sum <= 0) return kAllOnDevice;
  return percent_of(TierShares{static_cast<double>(bytes.device) / sum,
                               static_cast<double>(bytes.host) / sum,
                               static_cast<double>(bytes.disk) / sum});
}

std::string percent_text(const TierPercent& percent) {
  return std::to_string(percent[0]) + "," + std::to_string(percent[1]) + "," +
         std::to_string(percent[2]);
}

}  // namespace spillway
