// The exponential function of one vector, for the Highway bodies; included once per instruction
// set.
#if defined(SPILLWAY_CPU_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_EXP_INL_H
#undef SPILLWAY_CPU_EXP_INL_H
#else
#define SPILLWAY_CPU_EXP_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x of x <= 0, and NaN for NaN: half the instructions of Highway's Exp, which takes any x and
// makes 0 of NaN. By Cody and Waite's reduction, x = k ln 2 + r with |r| <= ln 2 / 2, and Cephes'
// polynomial for e^r (Moshier, expf); off by 2^-23 of the result at most, 0 below e^-87.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_below_zero(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer, which is in the last bits then.
  const V round = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), round);
  const V k = hn::Sub(shifted, round);
  V r = hn::NegMulAdd(k, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(k, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::MulAdd(r, hn::Set(d, 1.9875691500e-4f), hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(p, power));
}

// 1 / x of 1 <= x <= 2, off by 2^-22 at most: by the CPU's estimate of 11 bits or more and a step
// of Newton's.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reciprocal_to_two(D d, V x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  const V estimate = hn::ApproximateReciprocal(x);
  return hn::Mul(estimate, hn::NegMulAdd(x, estimate, hn::Set(d, 2.0f)));
#else
  return hn::Div(hn::Set(d, 1.0f), x);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
