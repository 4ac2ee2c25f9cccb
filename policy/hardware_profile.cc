#include "policy/hardware_profile.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace spillway {

Figure figure_of(std::vector<double> samples) {
  SPILLWAY_CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {median, samples.front(), samples.back(), static_cast<int>(samples.size()), ""};
}

}  // namespace spillway
