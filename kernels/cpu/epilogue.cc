#include "kernels/cpu/epilogue.h"

#include "kernels/cpu/gemm_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/epilogue.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// erf to 1.5e-7 (Abramowitz & Stegun 7.1.26), the precision of a float sum with 1.
HWY_INLINE V erf(V x) {
  const D d;
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

HWY_INLINE V activate(Activation activation, V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V half = hn::Set(d, 0.5f);
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      // Not Max(x, 0), which makes NaN 0: NaN has to reach the logits.
      return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
    case Activation::kGelu:
      return hn::Mul(hn::Mul(half, x), hn::Add(one, erf(hn::Mul(x, hn::Set(d, 0.70710678f)))));
    case Activation::kGeluTanh: {
      const V cube = hn::Mul(hn::Mul(x, x), x);
      const V inner = hn::Mul(hn::Set(d, 0.79788456f), hn::MulAdd(hn::Set(d, 0.044715f), cube, x));
      return hn::Mul(hn::Mul(half, x), hn::Add(one, hn::Tanh(d, inner)));
    }
    case Activation::kSilu:
      return hn::Div(x, hn::Add(one, hn::Exp(d, hn::Neg(x))));
  }
  return x;
}

// Bias and activation of a vector of the tile, from column `j` on; the tile is 64 wide, so vectors
// may be computed past its last column.
template <Activation kActivation>
HWY_INLINE V finished(const TileStore& s, const float* HWY_RESTRICT x, size_t j) {
  const D d;
  V v = hn::Load(d, x + j);
  if (s.bias != nullptr) {
    v = hn::Add(v, load_up_to(d, s.bias + j, static_cast<size_t>(s.columns) - j));
  }
  return activate(kActivation, v);
}

template <Activation kActivation>
void store_rows(const TileStore& s) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto columns = static_cast<size_t>(s.columns);
  const size_t whole = columns / lanes * lanes;
  for (int64_t row = 0; row < s.rows; ++row) {
    float* HWY_RESTRICT x = s.tile + row * kGemmColumns;
    const auto offset = static_cast<size_t>(row * s.out_stride);
    if (s.out_dtype == DType::kBF16) {
      uint16_t* HWY_RESTRICT out = reinterpret_cast<uint16_t*>(s.out) + offset;
      for (size_t j = 0; j < whole; j += lanes) {
        hn::StoreU(bf16_of(d, finished<kActivation>(s, x, j)), hn::Rebind<uint16_t, D>(), out + j);
      }
      if (whole == columns) continue;
      hn::Store(finished<kActivation>(s, x, whole), d, x + whole);
      store_bf16(x + whole, columns - whole, out + whole);
      continue;
    }
    float* HWY_RESTRICT out = reinterpret_cast<float*>(s.out) + offset;
    for (size_t j = 0; j < columns; j += lanes) {
      V v = finished<kActivation>(s, x, j);
      if (s.accumulate) v = hn::Add(v, load_up_to(d, out + j, columns - j));
      store_up_to(d, v, out + j, columns - j);
    }
  }
}

void StoreTile(const TileStore& s) {
  switch (s.activation) {
    case Activation::kNone:
      return store_rows<Activation::kNone>(s);
    case Activation::kRelu:
      return store_rows<Activation::kRelu>(s);
    case Activation::kGelu:
      return store_rows<Activation::kGelu>(s);
    case Activation::kGeluTanh:
      return store_rows<Activation::kGeluTanh>(s);
    case Activation::kSilu:
      return store_rows<Activation::kSilu>(s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {
HWY_EXPORT(StoreTile);
void store_tile(const TileStore& store) {
  HWY_DYNAMIC_DISPATCH(StoreTile)(store);
}
}  // namespace spillway::cpu
#endif  // HWY_ONCE
