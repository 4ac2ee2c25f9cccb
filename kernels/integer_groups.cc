#include "kernels/integer_groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_groups.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums are of sixteen chains whatever the vector's length, and CMakeLists.txt keeps the compiler
// from joining multiplications and additions, so that every instruction set finds the same numbers.
constexpr size_t kChains = 16;
using D = hn::CappedTag<float, kChains>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kChains / kLanes;
constexpr float kTop = 15;                 // The largest code
constexpr float kLow = -128, kHigh = 127;  // Of n * s + z
constexpr float kScaleMax = 17;            // (kHigh - kLow) / kTop

struct GroupRange {
  float low, high;
  bool finite;
};

// `count` is a multiple of kChains.
GroupRange range_of(const float* HWY_RESTRICT x, size_t count) {
  const D d;
  V low[kVectors], high[kVectors], zero[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    low[v] = high[v] = hn::LoadU(d, x + v * kLanes);
    zero[v] = hn::Mul(low[v], hn::Zero(d));  // NaN for what is no number
  }
  for (size_t i = kChains; i < count; i += kChains) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(d, x + i + v * kLanes);
      low[v] = hn::Min(low[v], value);
      high[v] = hn::Max(high[v], value);
      zero[v] = hn::Add(zero[v], hn::Mul(value, hn::Zero(d)));
    }
  }
  for (size_t v = 1; v < kVectors; ++v) {
    low[0] = hn::Min(low[0], low[v]);
    high[0] = hn::Max(high[0], high[v]);
    zero[0] = hn::Add(zero[0], zero[v]);
  }
  return {hn::GetLane(hn::MinOfLanes(d, low[0])), hn::GetLane(hn::MaxOfLanes(d, high[0])),
          hn::GetLane(hn::SumOfLanes(d, zero[0])) == 0};
}

// Codes of numbers in units, as integers in float: (x - z) / s within 0 to kTop, to nearest.
HWY_INLINE V codes_of(V x, V z, V inverse) {
  const D d;
  const V rounder = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: sums of it are integers.
  const V steps = hn::Mul(hn::Sub(x, z), inverse);
  const V inside = hn::Min(hn::Max(steps, hn::Zero(d)), hn::Set(d, kTop));
  return hn::Sub(hn::Add(inside, rounder), rounder);
}

float squared_error(const float* HWY_RESTRICT x, size_t count, float s, float z) {
  const D d;
  const V scale = hn::Set(d, s), minimum = hn::Set(d, z), inverse = hn::Set(d, 1 / s);
  V sums[kVectors];
  for (V& sum : sums) sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += kChains) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(d, x + i + v * kLanes);
      const V back = hn::Add(hn::Mul(codes_of(value, minimum, inverse), scale), minimum);
      const V off = hn::Sub(value, back);
      sums[v] = hn::Add(sums[v], hn::Mul(off, off));
    }
  }
  HWY_ALIGN float chains[kChains];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, chains + v * kLanes);
  for (size_t half = kChains / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) chains[i] += chains[i + half];
  }
  return chains[0];
}

struct IntegerScale {
  float s = 1, z = 0;
};

// Of a group of numbers in units between `low` and `high`: the scale that spans them or the next
// smaller one, and the three minima around that which centres the codes on them.
IntegerScale best_scale(const float* HWY_RESTRICT x, size_t count, float low, float high) {
  const float spans = std::clamp(std::ceil((high - low) / kTop), 1.0f, kScaleMax);
  IntegerScale best;
  float least = std::numeric_limits<float>::infinity();
  for (const float s : {spans, spans - 1}) {
    if (s < 1) continue;
    const float centred = std::nearbyint((low + high) / 2 - s * (kTop / 2));
    for (const float shift : {0.0f, -1.0f, 1.0f}) {
      const float z = std::clamp(centred + shift, kLow, kHigh - kTop * s);
      const float error = squared_error(x, count, s, z);
      if (error < least) {
        least = error;
        best = {s, z};
      }
    }
  }
  return best;
}

void store_codes(const float* HWY_RESTRICT x, size_t count, const IntegerScale& scale,
                 uint8_t* HWY_RESTRICT codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V minimum = hn::Set(d, scale.z), inverse = hn::Set(d, 1 / scale.s);
  HWY_ALIGN int32_t some[kGroupMax];
  for (size_t i = 0; i < count; i += kLanes) {
    hn::Store(hn::ConvertTo(di, codes_of(hn::LoadU(d, x + i), minimum, inverse)), di, some + i);
  }
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(some[i]);
}

// The exponent of the smallest unit of which +-127 reach `largest`, as small as float16 allows.
int unit_exponent(float largest) {
  constexpr int kLeast = -24;  // Of float16
  int exponent = kLeast;
  const float mantissa = std::frexp(largest / kHigh, &exponent);
  return std::max(kLeast, mantissa == 0.5f ? exponent - 1 : exponent);
}

// One stretch of 4-bit weights.
void QuantizeStretch(const float* HWY_RESTRICT values, size_t count, size_t group, uint8_t* codes,
                     GroupScale* scales) {
  constexpr int kUnitMax = 8;  // 128 * 2^9 is too large for float16.
  constexpr auto kStretchCount = static_cast<size_t>(kStretch);
  HWY_ALIGN float x[kStretchCount];
  GroupRange ranges[kStretchCount / kChains];
  const size_t groups = (count + group - 1) / group;
  const size_t whole = groups * group;
  std::copy_n(values, count, x);
  // A short group's first number counts several times; that decides between candidates only.
  std::fill(x + count, x + whole, x[count - 1]);
  float largest = 0;
  for (size_t g = 0; g < groups; ++g) {
    ranges[g] = range_of(x + g * group, group);
    if (!ranges[g].finite) continue;
    largest = std::max({largest, std::abs(ranges[g].low), std::abs(ranges[g].high)});
  }
  const int exponent = largest == 0 ? -24 : unit_exponent(largest);
  const bool integers = exponent <= kUnitMax;
  const float unit = std::ldexp(1.0f, exponent), units = std::ldexp(1.0f, -exponent);
  for (size_t i = 0; i < whole; ++i) x[i] *= units;  // Exact
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * group, here = std::min(group, count - first);
    if (!integers || !ranges[g].finite) {
      scales[g] = quantize_group(4, {values + first, here}, codes + first);
      continue;
    }
    const IntegerScale best =
        best_scale(x + first, group, ranges[g].low * units, ranges[g].high * units);
    scales[g] = {f32_to_f16(best.s * unit), f32_to_f16(best.z * unit)};
    uint8_t some[kGroupMax];
    store_codes(x + first, group, best, some);
    std::copy_n(some, here, codes + first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(QuantizeStretch);

void quantize_weights(Format format, std::span<const float> values, uint8_t* codes,
                      GroupScale* scales) {
  const FormatTraits& traits = format_traits(format);
  const auto group = static_cast<size_t>(traits.group);
  SPILLWAY_CHECK(is_grouped(format));
  while (!values.empty()) {
    const auto stretch = values.first(std::min(values.size(), static_cast<size_t>(kStretch)));
    values = values.subspan(stretch.size());
    if (traits.bits == 4) {
      HWY_DYNAMIC_DISPATCH(QuantizeStretch)(stretch.data(), stretch.size(), group, codes, scales);
    } else {
      for (size_t first = 0; first < stretch.size(); first += group) {
        scales[first / group] = quantize_group(
            traits.bits, stretch.subspan(first, std::min(group, stretch.size() - first)),
            codes + first);
      }
    }
    codes += stretch.size();
    scales += (stretch.size() + group - 1) / group;
  }
}

}  // namespace spillway
#endif  // HWY_ONCE
