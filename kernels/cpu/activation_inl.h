// Activation functions of one vector, for the Highway bodies; included once per instruction set.
#if defined(SPILLWAY_CPU_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ACTIVATION_INL_H
#undef SPILLWAY_CPU_ACTIVATION_INL_H
#else
#define SPILLWAY_CPU_ACTIVATION_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/base/model_shape.h"
#include "kernels/cpu/exp_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// erf to 1.5e-7 (Abramowitz & Stegun 7.1.26), the precision of a float sum with 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  const V t = hn::Div(one, hn::MulAdd(hn::Set(d, 0.3275911f), magnitude, one));
  V poly = hn::Set(d, 1.061405429f);
  for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) {
    poly = hn::MulAdd(poly, t, hn::Set(d, c));
  }
  const V tail = hn::Mul(hn::Mul(poly, t), hn::Exp(d, hn::Neg(hn::Mul(magnitude, magnitude))));
  return hn::CopySign(hn::Sub(one, tail), x);
}

// act(x), one vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V activate(D d, Activation activation, V x) {
  const V one = hn::Set(d, 1.0f);
  const V half = hn::Set(d, 0.5f);
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      // Not Max(x, 0), which makes NaN 0: NaN has to reach the logits.
      return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
    case Activation::kGelu:
      return hn::Mul(hn::Mul(half, x), hn::Add(one, erf(d, hn::Mul(x, hn::Set(d, 0.70710678f)))));
    case Activation::kGeluTanh: {
      const V cube = hn::Mul(hn::Mul(x, x), x);
      const V inner = hn::Mul(hn::Set(d, 0.79788456f), hn::MulAdd(hn::Set(d, 0.044715f), cube, x));
      return hn::Mul(hn::Mul(half, x), hn::Add(one, hn::Tanh(d, inner)));
    }
    case Activation::kSilu: {
      // x / (1 + e^-x), by the power that does not overflow.
      const V power = exp_below_zero(d, hn::Neg(hn::Abs(x)));
      const V part = hn::IfNegativeThenElse(x, power, one);
      return hn::Mul(hn::Mul(x, part), reciprocal_to_two(d, hn::Add(one, power)));
    }
  }
  return x;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
