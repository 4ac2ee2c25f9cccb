#include "kernels/cpu/memory_probe.h"

#include <algorithm>
#include <atomic>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/memory_probe.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint64_t, 8>;  // At most a line
using V = hn::Vec<D>;

constexpr size_t kLineWords = 8;
constexpr size_t kAheadWords = 2048 / sizeof(uint64_t);  // Prefetch distance on each stream

template <Hint kHint>
HWY_INLINE void ask_for(const uint64_t* line) {
  if constexpr (kHint == Hint::kFirst) __builtin_prefetch(line, 0, 3);
  if constexpr (kHint == Hint::kSecond) __builtin_prefetch(line, 0, 2);
  if constexpr (kHint == Hint::kPast) __builtin_prefetch(line, 0, 0);
}

// Combines the bits of a piece, so that no load can be optimised away.
template <int kStreams, Hint kHint>
uint64_t read_piece(const uint64_t* HWY_RESTRICT words, size_t count) {
  const D d;
  constexpr size_t kLanes = hn::MaxLanes(D());
  const size_t of_stream = count / kStreams;
  V bits[kStreams];
  for (int stream = 0; stream < kStreams; ++stream) bits[stream] = hn::Zero(d);
  for (size_t i = 0; i < of_stream; i += kLineWords) {
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
      const uint64_t* line = words + static_cast<size_t>(stream) * of_stream + i;
      ask_for<kHint>(line + kAheadWords);
#pragma GCC unroll 4
      for (size_t at = 0; at < kLineWords; at += kLanes) {
        bits[stream] = hn::Or(bits[stream], hn::Load(d, line + at));
      }
    }
  }
  V all = bits[0];
  for (int stream = 1; stream < kStreams; ++stream) all = hn::Or(all, bits[stream]);
  HWY_ALIGN uint64_t lanes[hn::MaxLanes(D())] = {};
  hn::Store(all, d, lanes);
  uint64_t any = 0;
  for (const uint64_t lane : lanes) any |= lane;
  return any;
}

template <Hint kHint>
uint64_t read_streams(const uint64_t* words, size_t count, int streams) {
  switch (streams) {
    case 1:
      return read_piece<1, kHint>(words, count);
    case 2:
      return read_piece<2, kHint>(words, count);
    case 4:
      return read_piece<4, kHint>(words, count);
    default:
      return read_piece<8, kHint>(words, count);
  }
}

uint64_t read_words(const uint64_t* words, size_t count, const ReadPattern& pattern) {
  switch (pattern.hint) {
    case Hint::kNone:
      return read_streams<Hint::kNone>(words, count, pattern.streams);
    case Hint::kFirst:
      return read_streams<Hint::kFirst>(words, count, pattern.streams);
    case Hint::kSecond:
      return read_streams<Hint::kSecond>(words, count, pattern.streams);
    default:
      return read_streams<Hint::kPast>(words, count, pattern.streams);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace spillway::cpu {

namespace {

HWY_EXPORT(read_words);

constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

std::span<const ReadPattern> read_patterns() {
  static constexpr ReadPattern kPatterns[] = {
      {1, Hint::kNone}, {1, Hint::kFirst}, {1, Hint::kSecond}, {1, Hint::kPast},
      {2, Hint::kNone}, {2, Hint::kFirst}, {2, Hint::kSecond}, {2, Hint::kPast},
      {4, Hint::kNone}, {4, Hint::kFirst}, {4, Hint::kSecond}, {4, Hint::kPast},
      {8, Hint::kNone}, {8, Hint::kFirst}, {8, Hint::kSecond}, {8, Hint::kPast}};
  return kPatterns;
}

uint64_t read_memory(CpuContext& context, const std::byte* data, size_t bytes,
                     const ReadPattern& pattern) {
  SPILLWAY_CHECK(bytes % kPiece == 0);
  std::atomic<uint64_t> sink{0};
  context.parallel_for(static_cast<int64_t>(bytes / kPiece), [&](int64_t piece) {
    const auto* words =
        reinterpret_cast<const uint64_t*>(data + static_cast<size_t>(piece) * kPiece);
    sink.fetch_add(HWY_DYNAMIC_DISPATCH(read_words)(words, kPiece / sizeof(uint64_t), pattern),
                   std::memory_order_relaxed);
  });
  return sink;
}

ReadPattern fastest_pattern(CpuContext& context, const std::byte* data, size_t bytes) {
  ReadPattern fastest;
  double least = 1e30;
  for (const ReadPattern& pattern : read_patterns()) {
    // The better of two runs: other load on the machine would choose otherwise.
    for (int i = 0; i < 2; ++i) {
      const double start = steady_seconds();
      read_memory(context, data, bytes, pattern);
      const double seconds = steady_seconds() - start;
      if (seconds < least) fastest = pattern;
      least = std::min(least, seconds);
    }
  }
  return fastest;
}

}  // namespace spillway::cpu

#endif  // HWY_ONCE
