// Expansion of rows of quantised formats (base/quantized.h); included once per instruction set.
#if defined(SPILLWAY_CPU_QUANT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_QUANT_INL_H
#undef SPILLWAY_CPU_QUANT_INL_H
#else
#define SPILLWAY_CPU_QUANT_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "kernels/base/quantized.h"
#include "kernels/base/quantized_rows.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Expands a whole group.
template <Format kOf>
HWY_INLINE void expand_group(const std::byte* HWY_RESTRICT group, float* HWY_RESTRICT out) {
  using Traits = QuantTraits<kOf>;
  constexpr auto kWords = static_cast<size_t>(Traits::kWords);
  // The fields of a word lie as many numbers apart as the group has words, whatever the lanes.
  const hn::CappedTag<float, kWords> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> di;
  static_assert(offsetof(GroupScale, scale) == 0 && offsetof(GroupScale, minimum) == 2);
#if HWY_TARGET == HWY_SCALAR
  GroupScale shared;
  std::memcpy(&shared, group, sizeof(shared));
  const auto scale = hn::Set(d, f16_to_f32(shared.scale));
  const auto minimum = hn::Set(d, f16_to_f32(shared.minimum));
#else
  // By the CPU's own conversion: without it, two numbers would take as long as the group's
  // other 64.
  const auto shared =
      load_widened(hn::FixedTag<float, 4>(), reinterpret_cast<const hwy::float16_t*>(group));
  const auto scale = hn::Set(d, hn::GetLane(shared));
  const auto minimum = hn::Set(d, hn::ExtractLane(shared, 1));
#endif
  const auto* from = reinterpret_cast<const uint32_t*>(group + sizeof(GroupScale));
  for (size_t first = 0; first < kWords; first += hn::MaxLanes(d)) {
    auto words = hn::LoadU(du, from + first);
#pragma GCC unroll 8
    for (size_t i = 0; i < static_cast<size_t>(Traits::kFields); ++i) {
      const auto codes = hn::BitCast(di, hn::And(words, hn::Set(du, Traits::kMask)));
      hn::StoreU(hn::MulAdd(hn::ConvertTo(d, codes), scale, minimum), d, out + i * kWords + first);
      words = hn::ShiftRight<Traits::kBits>(words);
    }
  }
}

// Vector version of unpack_quantized_row() for one format.
template <Format kOf>
inline void expand_row(const std::byte* HWY_RESTRICT row, size_t count, float* HWY_RESTRICT out) {
  constexpr auto kGroup = static_cast<size_t>(QuantTraits<kOf>::kGroup);
  for (; count >= kGroup; count -= kGroup) {
    expand_group<kOf>(row, out);
    row += QuantTraits<kOf>::kGroupBytes;
    out += kGroup;
  }
  if (count != 0) unpack_quantized_row(kOf, row, {out, count});
}

// Quantises a whole group, with the bytes of pack_quantized_row().
template <Format kOf>
HWY_INLINE void pack_group(const float* HWY_RESTRICT from, std::byte* HWY_RESTRICT group) {
  using Traits = QuantTraits<kOf>;
  constexpr auto kWords = static_cast<size_t>(Traits::kWords);
  constexpr auto kGroup = static_cast<size_t>(Traits::kGroup);
  constexpr auto kFields = static_cast<size_t>(Traits::kFields);
  const hn::CappedTag<float, kWords> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  constexpr size_t kLanes = hn::MaxLanes(d);
  auto low = hn::LoadU(d, from), high = low, zero = hn::Zero(d);
#pragma GCC unroll 8
  for (size_t i = 0; i < kGroup; i += kLanes) {
    const auto x = hn::LoadU(d, from + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
    zero = hn::MulAdd(x, hn::Zero(d), zero);  // Stays 0 unless a number is NaN or infinite.
  }
  if (!hn::AllTrue(d, hn::Eq(zero, hn::Zero(d))))
    return pack_quantized_row(kOf, {from, kGroup}, group);
  const GroupScale shared = group_scale(Traits::kBits, hn::GetLane(hn::MinOfLanes(d, low)),
                                        hn::GetLane(hn::MaxOfLanes(d, high)));
  const float step = f16_to_f32(shared.scale);
  const auto minimum = hn::Set(d, f16_to_f32(shared.minimum));
  const auto inverse = hn::Set(d, step > 0.0f ? 1.0f / step : 0.0f);
  const auto top = hn::Set(d, static_cast<float>(Traits::kMask));
  std::memcpy(group, &shared, sizeof(shared));
  auto* to = reinterpret_cast<uint32_t*>(group + sizeof(shared));
  for (size_t first = 0; first < kWords; first += kLanes) {
    auto words = hn::Zero(du);
#pragma GCC unroll 8
    for (size_t i = 0; i < kFields; ++i) {
      const auto x = hn::LoadU(d, from + (kFields - 1 - i) * kWords + first);
      const auto steps = hn::Mul(hn::Sub(x, minimum), inverse);
      const auto inside = hn::Min(hn::Max(steps, hn::Zero(d)), top);
      const auto codes =
          hn::ConvertTo(hn::RebindToSigned<decltype(d)>(), hn::Add(inside, hn::Set(d, 0.5f)));
      words = hn::Or(hn::ShiftLeft<Traits::kBits>(words), hn::BitCast(du, codes));
    }
    hn::StoreU(words, du, to + first);
  }
}

// Vector version of pack_quantized_row() for one format.
template <Format kOf>
inline void pack_row(const float* HWY_RESTRICT from, size_t count, std::byte* HWY_RESTRICT row) {
  constexpr auto kGroup = static_cast<size_t>(QuantTraits<kOf>::kGroup);
  for (; count >= kGroup; count -= kGroup) {
    pack_group<kOf>(from, row);
    row += QuantTraits<kOf>::kGroupBytes;
    from += kGroup;
  }
  if (count != 0) pack_quantized_row(kOf, {from, count}, row);
}

// Vector version of pack_q8_row().
inline void store_q8_row(const float* HWY_RESTRICT from, size_t count,
                         std::byte* HWY_RESTRICT row) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = count / lanes * lanes;
  HWY_ALIGN float rest[hn::MaxLanes(d)] = {};
  if (whole < count) std::copy(from + whole, from + count, rest);
  // As integers, the bits of magnitudes have their order, with infinity and NaN above all numbers.
  auto most = hn::BitCast(di, hn::Abs(hn::Load(d, rest)));
  for (size_t i = 0; i < whole; i += lanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
  }
  const auto bits = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, most)));
  const float quotient = std::bit_cast<float>(bits) / kQ8CodeMax;
  const float scale = std::min(quotient, kQ8ScaleMax);
  constexpr uint32_t kInfinity = 0x7f800000;
  if (bits >= kInfinity || !(scale > 0)) {
    return pack_quantized_row(Format::kQ8, {from, count}, row);
  }
  const auto codes_at = [&](const float* HWY_RESTRICT at) {
    const auto code_max = hn::Set(d, kQ8CodeMax);
    const auto steps = hn::Div(hn::LoadU(d, at), hn::Set(d, scale));
    // The quotient of a subnormal scale may be above 127.
    const auto inside = hn::Min(hn::Max(steps, hn::Neg(code_max)), code_max);
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the lowest bits.
    const auto rounded = hn::Add(inside, hn::Set(d, 12582912.0f));
    return hn::TruncateTo(d8, hn::BitCast(du, rounded));
  };
  std::memcpy(row, &scale, sizeof(scale));
  auto* const to = reinterpret_cast<uint8_t*>(row + sizeof(scale));
  for (size_t i = 0; i < whole; i += lanes) hn::StoreU(codes_at(from + i), d8, to + i);
  if (whole < count) {
    HWY_ALIGN uint8_t codes[hn::MaxLanes(d)];
    hn::Store(codes_at(rest), d8, codes);
    std::copy_n(codes, count - whole, to + whole);
  }
  const size_t bytes = format_row_bytes(Format::kQ8, static_cast<int64_t>(count)) - sizeof(scale);
  if (count < bytes) std::fill(to + count, to + bytes, uint8_t{0});
}

// Vector version of pack_quantized_row().
HWY_INLINE void store_quantized_row(Format format, const float* HWY_RESTRICT from, size_t count,
                                    std::byte* HWY_RESTRICT row) {
  if (format == Format::kQ8) return store_q8_row(from, count, row);
  with_quant_traits(format,
                    [&](auto traits) { pack_row<decltype(traits)::kFormat>(from, count, row); });
}

// Vector version of unpack_q8_row().
inline void expand_q8_row(const std::byte* HWY_RESTRICT row, size_t count,
                          float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  float scale;
  std::memcpy(&scale, row, sizeof(scale));
  const auto all = hn::Set(d, scale);
  const auto* const codes = reinterpret_cast<const int8_t*>(row + sizeof(scale));
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto some = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, some), all), d, out + i);
  }
  for (; i < count; ++i) out[i] = q8_value(codes[i], scale);
}

// Vector version of unpack_quantized_row(), for rows that lie `stride` bytes apart.
inline void expand_quantized_rows(Format format, const std::byte* HWY_RESTRICT from, size_t stride,
                                  size_t rows, size_t count, float* HWY_RESTRICT out) {
  if (format == Format::kQ8) {
    for (size_t r = 0; r < rows; ++r) expand_q8_row(from + r * stride, count, out + r * count);
    return;
  }
  with_quant_traits(format, [&](auto traits) {
    for (size_t r = 0; r < rows; ++r) {
      expand_row<decltype(traits)::kFormat>(from + r * stride, count, out + r * count);
    }
  });
}

HWY_INLINE void expand_quantized_row(Format format, const std::byte* HWY_RESTRICT row, size_t count,
                                     float* HWY_RESTRICT out) {
  expand_quantized_rows(format, row, 0, 1, count, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#endif
