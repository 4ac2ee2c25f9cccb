#include "kernels/sampling/exponentials.h"

#include <cstddef>
#include <cstring>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/exponentials.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>
//
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

V exponential(V logit, V best, V temperature) {
  const D d;
  const V lowest = hn::Set(d, -87.0f);
  // Dividing, not scaling by the inverse: a tiny temperature gives 0 and -inf, never NaN.
  const V power = hn::Div(hn::Sub(logit, best), temperature);
  return hn::IfThenElseZero(hn::Ge(power, lowest), hn::Exp(d, hn::Max(power, lowest)));
}

void Exponentiate(const float* row, size_t count, float best, float temperature, float* weights) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V b = hn::Set(d, best);
  const V t = hn::Set(d, temperature);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(exponential(hn::LoadU(d, row + i), b, t), d, weights + i);
  }
  HWY_ALIGN float rest[hn::MaxLanes(d)] = {};
  std::memcpy(rest, row + i, (count - i) * sizeof(float));
  hn::Store(exponential(hn::Load(d, rest), b, t), d, rest);
  std::memcpy(weights + i, rest, (count - i) * sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(Exponentiate);

void exponentiate(std::span<const float> row, float best, float temperature,
                  std::span<float> weights) {
  SPILLWAY_CHECK(row.size() == weights.size());
  HWY_DYNAMIC_DISPATCH(Exponentiate)(row.data(), row.size(), best, temperature, weights.data());
}

}  // namespace spillway
#endif
