// Small vector helpers shared by the Highway bodies; included once per instruction set.
#if defined(SPILLWAY_CPU_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_VECTOR_INL_H
#undef SPILLWAY_CPU_VECTOR_INL_H
#else
#define SPILLWAY_CPU_VECTOR_INL_H
#endif

#include <hwy/highway.h>

#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/unroll.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads the first min(count, lanes) floats; the other lanes are zero.
template <class D>
HWY_INLINE hn::Vec<D> load_up_to(D d, const float* HWY_RESTRICT from, size_t count) {
  if (count >= hn::Lanes(d)) return hn::LoadU(d, from);
  HWY_ALIGN float padded[hn::MaxLanes(D())] = {};
  std::memcpy(padded, from, count * sizeof(float));
  return hn::Load(d, padded);
}

template <class D>
HWY_INLINE void store_up_to(D d, hn::Vec<D> v, float* HWY_RESTRICT to, size_t count) {
  if (count >= hn::Lanes(d)) {
    hn::StoreU(v, d, to);
    return;
  }
  HWY_ALIGN float padded[hn::MaxLanes(D())];
  hn::Store(v, d, padded);
  std::memcpy(to, padded, count * sizeof(float));
}

// Loads one vector of a row in f32, bf16 or f16, widened. REQUIRES: a whole vector can be read.
template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const float* HWY_RESTRICT from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const hwy::bfloat16_t* HWY_RESTRICT from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const hwy::float16_t* HWY_RESTRICT from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}

// Sums of the lanes of as many vectors as one has lanes, one per lane: half as many additions as
// vector by vector, and the order of a vector's additions depends on no other vector.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> sums_of_lanes(
    hn::Vec<hn::ScalableTag<float>>* HWY_RESTRICT v) {
#if HWY_TARGET == HWY_SCALAR
  return v[0];
#else
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLanes = hn::MaxLanes(d);
#if HWY_TARGET == HWY_AVX2
  // Blends take ports that shuffles do not.
  const auto halves = [](V a, V b) {
    return _mm256_add_ps(_mm256_blend_ps(a.raw, b.raw, 0xcc),
                         _mm256_shuffle_ps(a.raw, b.raw, 0x4e));
  };
  const auto quarters = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  };
  const __m256 low = quarters(halves(v[0], v[1]), halves(v[2], v[3]));
  const __m256 high = quarters(halves(v[4], v[5]), halves(v[6], v[7]));
  return V{
      _mm256_add_ps(_mm256_blend_ps(low, high, 0xf0), _mm256_permute2f128_ps(low, high, 0x21))};
#else
  const hn::RepartitionToWide<decltype(d)> wide;
  // Inside blocks of four lanes: of every four vectors one whose lanes are theirs.
  SPILLWAY_UNROLL_TIMES(4)
  for (size_t i = 0; i < kLanes / 4; ++i) {
    const V* four = v + 4 * i;
    const V a =
        hn::Add(hn::InterleaveLower(d, four[0], four[1]), hn::InterleaveUpper(d, four[0], four[1]));
    const V b =
        hn::Add(hn::InterleaveLower(d, four[2], four[3]), hn::InterleaveUpper(d, four[2], four[3]));
    const auto x = hn::BitCast(wide, a), y = hn::BitCast(wide, b);
    v[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, x, y)),
                   hn::BitCast(d, hn::InterleaveUpper(wide, x, y)));
  }
#if HWY_TARGET <= HWY_AVX3
  const auto add_blocks = [](V a, V b) {
    return hn::Add(V{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)},
                   V{_mm512_shuffle_f32x4(a.raw, b.raw, 0xdd)});
  };
  return add_blocks(add_blocks(v[0], v[1]), add_blocks(v[2], v[3]));
#else
  static_assert(kLanes == 4);
  return v[0];
#endif
#endif
#endif
}

// Rounds to nearest even as f32_to_bf16 does, bit for bit (Highway's own conversion to bfloat16
// truncates).
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> bf16_of(D /*d*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto found = hn::IfThenElse(nan, hn::Or(high, hn::Set(du, 0x40u)), rounded);
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(di, found));
}
inline void store_bf16(const float* HWY_RESTRICT from, size_t count, uint16_t* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(bf16_of(d, hn::LoadU(d, from + i)), hn::Rebind<uint16_t, decltype(d)>(), to + i);
  }
  for (; i < count; ++i) to[i] = f32_to_bf16(from[i]);
}
inline void store_f16(const float* HWY_RESTRICT from, size_t count, uint16_t* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < count; ++i) to[i] = f32_to_f16(from[i]);
}

// A row of f32 stored in any float format.
inline void store_row(DType dtype, const float* HWY_RESTRICT from, size_t count, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (dtype == DType::kBF16) {
    store_bf16(from, count, reinterpret_cast<uint16_t*>(to));
  } else {
    store_f16(from, count, reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
