#include "kernels/convert_numbers.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert_numbers.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

// Bits of a number without its sign from which on the target is infinite or NaN; of a float32 but
// for 16-bit numbers that stay what they are.
#ifndef SPILLWAY_CONVERT_NUMBERS_LIMITS
#define SPILLWAY_CONVERT_NUMBERS_LIMITS
namespace spillway {
namespace {
constexpr uint32_t kInfinityF32 = 0x7f800000;
constexpr uint16_t kInfinityBf16 = 0x7f80, kInfinityF16 = 0x7c00;
constexpr uint32_t kRoundsToInfinityBf16 = 0x7f7f8000, kRoundsToInfinityF16 = 0x477ff000;
}  // namespace
}  // namespace spillway
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using DHalf = hn::Rebind<uint16_t, D>;
using VU = hn::Vec<DU>;

const uint16_t* halves(const std::byte* from) {
  return reinterpret_cast<const uint16_t*>(from);
}
VU load_halves(const std::byte* from) {
  return hn::PromoteTo(DU(), hn::LoadU(DHalf(), halves(from)));
}
// REQUIRES: values below 2^16.
void store_halves(VU values, std::byte* to) {
  hn::StoreU(hn::DemoteTo(DHalf(), hn::BitCast(DI(), values)), DHalf(),
             reinterpret_cast<uint16_t*>(to));
}

// The bodies follow f16_to_f32() and so on, branches as selections. The conversions of processors
// would change the bits of some NaN.
struct F32 {
  static VU load(const std::byte* from) {
    return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(from));
  }
  static void store(VU bits, std::byte* to) {
    hn::StoreU(bits, DU(), reinterpret_cast<uint32_t*>(to));
  }
  static constexpr size_t kBytes = 4;
  static constexpr uint32_t kLimit = kInfinityF32;
};

struct Bf16 {
  static VU load(const std::byte* from) { return hn::ShiftLeft<16>(load_halves(from)); }
  static void store(VU bits, std::byte* to) {
    const DU d;
    const VU high = hn::ShiftRight<16>(bits);
    const VU odd = hn::And(high, hn::Set(d, 1u));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), odd));
    const auto nan = hn::Gt(hn::And(bits, hn::Set(d, 0x7fffffffu)), hn::Set(d, kInfinityF32));
    store_halves(hn::IfThenElse(nan, hn::Or(high, hn::Set(d, 0x40u)), rounded), to);
  }
  static constexpr size_t kBytes = 2;
  static constexpr uint32_t kLimit = kRoundsToInfinityBf16;
};

struct F16 {
  static VU load(const std::byte* from) {
    const DU d;
    const VU bits = load_halves(from);
    const VU magnitude = hn::And(bits, hn::Set(d, 0x7fffu));
    // 0.5 with a subnormal half as its last bits is 0.5 more than it.
    const VU small = hn::BitCast(
        d,
        hn::Sub(hn::BitCast(D(), hn::Add(magnitude, hn::Set(d, 0x3f000000u))), hn::Set(D(), 0.5f)));
    const auto infinite = hn::Gt(magnitude, hn::Set(d, kInfinityF16 - 1u));
    const VU bias = hn::IfThenElse(infinite, hn::Set(d, 0x70000000u), hn::Set(d, 0x38000000u));
    const VU normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
    const VU sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    return hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x400u)), small, normal));
  }
  static void store(VU bits, std::byte* to) {
    const DU d;
    const VU magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
    const VU sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const VU small =
        hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(D(), magnitude), hn::Set(D(), 0.5f))),
                hn::Set(d, 0x3f000000u));
    const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
    const VU rounded = hn::Add(hn::Add(magnitude, hn::Set(d, 0xfffu)), odd);
    const VU normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d, 0x38000000u)));
    VU half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000u)), small, normal);
    half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, kRoundsToInfinityF16 - 1)),
                          hn::Set(d, uint32_t{kInfinityF16}), half);
    half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, kInfinityF32)), hn::Set(d, 0x7e00u), half);
    store_halves(hn::Or(sign, half), to);
  }
  static constexpr size_t kBytes = 2;
  static constexpr uint32_t kLimit = kRoundsToInfinityF16;
};

// Each returns whether a target number may not be finite, of the whole vectors among `count`
// numbers; `*done` is how many those are.
template <class From, class To>
bool convert_run(const std::byte* HWY_RESTRICT from, size_t count, std::byte* HWY_RESTRICT to,
                 size_t* done) {
  const DU d;
  const size_t lanes = hn::Lanes(d);
  const VU magnitude = hn::Set(d, 0x7fffffffu);
  VU largest = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VU bits = From::load(from + i * From::kBytes);
    largest = hn::Max(largest, hn::And(bits, magnitude));
    To::store(bits, to + i * To::kBytes);
  }
  *done = i;
  return !hn::AllTrue(d, hn::Lt(largest, hn::Set(d, To::kLimit)));
}

// Numbers whose bits stay, copied unless `to` is null.
template <class Bits>
bool copy_run(const std::byte* HWY_RESTRICT from, size_t count, std::byte* HWY_RESTRICT to,
              Bits infinity, size_t* done) {
  const hn::ScalableTag<Bits> d;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(d, static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1));
  auto largest = hn::Zero(d), second = largest;
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::LoadU(d, reinterpret_cast<const Bits*>(from + i * sizeof(Bits)));
    const auto b = hn::LoadU(d, reinterpret_cast<const Bits*>(from + (i + lanes) * sizeof(Bits)));
    largest = hn::Max(largest, hn::And(a, magnitude));
    second = hn::Max(second, hn::And(b, magnitude));
    if (to == nullptr) continue;
    hn::StoreU(a, d, reinterpret_cast<Bits*>(to + i * sizeof(Bits)));
    hn::StoreU(b, d, reinterpret_cast<Bits*>(to + (i + lanes) * sizeof(Bits)));
  }
  *done = i;
  return !hn::AllTrue(d, hn::Lt(hn::Max(largest, second), hn::Set(d, infinity)));
}

bool Copy(DType type, const std::byte* from, size_t count, std::byte* to, size_t* done) {
  if (type == DType::kF32) return copy_run<uint32_t>(from, count, to, kInfinityF32, done);
  return copy_run<uint16_t>(from, count, to, type == DType::kBF16 ? kInfinityBf16 : kInfinityF16,
                            done);
}

template <class From>
bool convert_from(const std::byte* from, DType to_type, size_t count, std::byte* to, size_t* done) {
  switch (to_type) {
    case DType::kF32:
      return convert_run<From, F32>(from, count, to, done);
    case DType::kBF16:
      return convert_run<From, Bf16>(from, count, to, done);
    case DType::kF16:
      break;
  }
  return convert_run<From, F16>(from, count, to, done);
}

bool Convert(DType from_type, const std::byte* from, DType to_type, size_t count, std::byte* to,
             size_t* done) {
  switch (from_type) {
    case DType::kF32:
      return convert_from<F32>(from, to_type, count, to, done);
    case DType::kBF16:
      return convert_from<Bf16>(from, to_type, count, to, done);
    case DType::kF16:
      break;
  }
  return convert_from<F16>(from, to_type, count, to, done);
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace spillway {

namespace {

HWY_EXPORT(Copy);
HWY_EXPORT(Convert);

// Bits of a number as a float32 has them.
uint32_t widened_magnitude(DType type, const std::byte* numbers, size_t index) {
  float value;
  convert_elements(type, numbers + index * dtype_bytes(type), DType::kF32,
                   reinterpret_cast<std::byte*>(&value), 1);
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

NonFinite count_one_by_one(DType type, const std::byte* numbers, size_t count) {
  NonFinite found;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = widened_magnitude(type, numbers, i);
    found.nan += magnitude > kInfinityF32 ? 1 : 0;
    found.inf += magnitude == kInfinityF32 ? 1 : 0;
  }
  return found;
}

}  // namespace

void convert_numbers(DType from, const std::byte* source, DType to, std::byte* target, size_t count,
                     ConversionCounts* counts) {
  size_t done = 0;
  bool suspect = from == to ? HWY_DYNAMIC_DISPATCH(Copy)(from, source, count, target, &done)
                            : HWY_DYNAMIC_DISPATCH(Convert)(from, source, to, count, target, &done);
  const std::byte* rest = source + done * dtype_bytes(from);
  convert_elements(from, rest, to, target + done * dtype_bytes(to), count - done);
  if (counts == nullptr) return;
  for (size_t i = done; i < count && !suspect; ++i) {
    suspect = widened_magnitude(to, target, i) >= kInfinityF32;
  }
  if (!suspect) return;
  const NonFinite before = count_one_by_one(from, source, count);
  counts->source += before;
  counts->overflow += count_one_by_one(to, target, count).inf - before.inf;
}

bool any_non_finite(DType dtype, const std::byte* numbers, size_t count) {
  size_t done = 0;
  if (HWY_DYNAMIC_DISPATCH(Copy)(dtype, numbers, count, nullptr, &done)) return true;
  for (size_t i = done; i < count; ++i) {
    if (widened_magnitude(dtype, numbers, i) >= kInfinityF32) return true;
  }
  return false;
}

}  // namespace spillway

#endif  // HWY_ONCE
