#include "kernels/sampling/row_passes.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/row_passes.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kChains = 16;
using D = hn::CappedTag<float, kChains>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kChains / kLanes;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct BlockBest {
  float value;
  bool valid;
};

BlockBest best_of_block(const float* HWY_RESTRICT x, size_t count) {
  const D d;
  const V infinity = hn::Set(d, kInfinity);
  V best[kVectors];
  for (V& one : best) one = hn::Set(d, -kInfinity);
  auto valid = hn::Eq(infinity, infinity);
  size_t i = 0;
  for (; i + kChains <= count; i += kChains) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(d, x + i + v * kLanes);
      best[v] = hn::IfThenElse(hn::Gt(value, best[v]), value, best[v]);
      valid = hn::And(valid, hn::Lt(value, infinity));
    }
  }
  HWY_ALIGN float lanes[kChains];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(best[v], d, lanes + v * kLanes);
  BlockBest result{*std::max_element(lanes, lanes + kChains), hn::AllTrue(d, valid)};
  for (; i < count; ++i) {
    result.value = x[i] > result.value ? x[i] : result.value;
    result.valid = result.valid && x[i] < kInfinity;
  }
  return result;
}

PassBest Best(const float* row, size_t count) {
  PassBest best{0, -kInfinity, true};
  for (size_t begin = 0; begin < count; begin += kRowBlock) {
    const BlockBest block = best_of_block(row + begin, std::min(kRowBlock, count - begin));
    best.valid = best.valid && block.valid;
    if (block.value <= best.value) continue;
    best.value = block.value;
    best.block = begin;
  }
  return best;
}

double sum_of_block(const float* HWY_RESTRICT x, size_t count, float floor) {
  const D d;
  const V least = hn::Set(d, floor);
  V sums[kVectors];
  for (V& one : sums) one = hn::Zero(d);
  size_t i = 0;
  for (; i + kChains <= count; i += kChains) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V value = hn::LoadU(d, x + i + v * kLanes);
      sums[v] = hn::Add(sums[v], hn::IfThenElseZero(hn::Ge(value, least), value));
    }
  }
  double sum = 0;
  for (; i < count; ++i) sum += x[i] >= floor ? x[i] : 0.0f;
  HWY_ALIGN float lanes[kChains];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, lanes + v * kLanes);
  for (float lane : lanes) sum += lane;
  return sum;
}

double Sum(const float* row, size_t count, float floor) {
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kRowBlock) {
    sum += sum_of_block(row + begin, std::min(kRowBlock, count - begin), floor);
  }
  return sum;
}

size_t Count(const float* HWY_RESTRICT x, size_t count, float floor) {
  const D d;
  const V least = hn::Set(d, floor);
  size_t found = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    found += hn::CountTrue(d, hn::Ge(hn::LoadU(d, x + i), least));
  }
  for (; i < count; ++i) found += x[i] >= floor ? 1 : 0;
  return found;
}

void DropBelow(float* HWY_RESTRICT x, size_t count, float floor) {
  const D d;
  const V least = hn::Set(d, floor);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V value = hn::LoadU(d, x + i);
    hn::StoreU(hn::IfThenElseZero(hn::Ge(value, least), value), d, x + i);
  }
  for (; i < count; ++i) x[i] = x[i] >= floor ? x[i] : 0.0f;
}

bool Contains(const float* HWY_RESTRICT x, size_t count, float value) {
  const D d;
  const V wanted = hn::Set(d, value);
  auto found = hn::Lt(wanted, wanted);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    found = hn::Or(found, hn::Eq(hn::LoadU(d, x + i), wanted));
  }
  bool any = !hn::AllFalse(d, found);
  for (; i < count; ++i) any = any || x[i] == value;
  return any;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(Best);
HWY_EXPORT(Sum);
HWY_EXPORT(Count);
HWY_EXPORT(DropBelow);
HWY_EXPORT(Contains);

PassBest pass_best(const float* row, size_t count) {
  return HWY_DYNAMIC_DISPATCH(Best)(row, count);
}
double pass_sum(const float* row, size_t count, float floor) {
  return HWY_DYNAMIC_DISPATCH(Sum)(row, count, floor);
}
size_t pass_count(const float* row, size_t count, float floor) {
  return HWY_DYNAMIC_DISPATCH(Count)(row, count, floor);
}
void pass_drop_below(float* row, size_t count, float floor) {
  HWY_DYNAMIC_DISPATCH(DropBelow)(row, count, floor);
}
bool pass_contains(const float* row, size_t count, float value) {
  return HWY_DYNAMIC_DISPATCH(Contains)(row, count, value);
}

}  // namespace spillway
#endif  // HWY_ONCE
