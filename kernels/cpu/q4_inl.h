// Expansion of rows of quantised formats, so far the 4-bit one (base/q4.h); included once per
// instruction set.
#if defined(SPILLWAY_CPU_Q4_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_Q4_INL_H
#undef SPILLWAY_CPU_Q4_INL_H
#else
#define SPILLWAY_CPU_Q4_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/base/q4.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Expands a whole group: 64 numbers of its 8 words.
HWY_INLINE void expand_q4_group(const std::byte* HWY_RESTRICT group, float* HWY_RESTRICT out) {
  constexpr size_t kWords = kQ4Group / kQ4NibblesPerWord;
  const hn::CappedTag<float, kWords>
      d;  // A word's nibbles lie 8 numbers apart, whatever the lanes.
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  Q4Scale shared;
  std::memcpy(&shared, group, sizeof(shared));
  const auto scale = hn::Set(d, f16_to_f32(shared.scale));
  const auto minimum = hn::Set(d, f16_to_f32(shared.minimum));
  const auto* from = reinterpret_cast<const uint32_t*>(group + sizeof(shared));
  for (size_t first = 0; first < kWords; first += hn::MaxLanes(d)) {
    auto words = hn::LoadU(du, from + first);
#pragma GCC unroll 8
    for (size_t i = 0; i < kQ4NibblesPerWord; ++i) {
      const auto nibbles = hn::BitCast(di, hn::And(words, hn::Set(du, 15u)));
      hn::StoreU(hn::MulAdd(hn::ConvertTo(d, nibbles), scale, minimum), d,
                 out + i * kWords + first);
      words = hn::ShiftRight<4>(words);
    }
  }
}

// Vector version of unpack_q4_row().
inline void expand_q4_row(const std::byte* HWY_RESTRICT row, size_t count,
                          float* HWY_RESTRICT out) {
  constexpr auto kGroup = static_cast<size_t>(kQ4Group);
  for (; count >= kGroup; count -= kGroup) {
    expand_q4_group(row, out);
    row += q4_row_bytes(kQ4Group);
    out += kGroup;
  }
  unpack_q4_row(row, {out, count});
}

// Vector version of unpack_quantized_row().
HWY_INLINE void expand_quantized_row(Format format, const std::byte* HWY_RESTRICT row, size_t count,
                                     float* HWY_RESTRICT out) {
  SPILLWAY_CHECK(format == Format::kQ4);
  expand_q4_row(row, count, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
