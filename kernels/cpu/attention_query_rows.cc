// A tile's query rows on their way in, and its outputs on their way out: both are transposed
// (attention_tile.h).
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_query_rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/attention_block_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The addresses of query rows, or of outputs, one after another: heads of a group, then tokens.
template <class T>
class RowAddresses {
 public:
  RowAddresses(T* first, const PromptView& view, int64_t row, int64_t stride, int64_t head)
      : group_(view.group),
        in_group_(row % view.group),
        stride_(stride),
        head_(head),
        at_(first + row / view.group * stride + in_group_ * head) {}
  T* next() {
    T* const found = at_;
    at_ += head_;
    if (++in_group_ == group_) {
      in_group_ = 0;
      at_ += stride_ - group_ * head_;
    }
    return found;
  }

 private:
  const int64_t group_;
  int64_t in_group_;
  const int64_t stride_, head_;
  T* at_;
};

// Asks for the next rows. They are pages apart, so no hardware prefetcher finds them, and may all
// fall into one set of the first-level cache, so they go to the second.
template <bool kToWrite, class T>
HWY_INLINE void prefetch_rows(RowAddresses<T>& rows, int64_t count, int64_t bytes) {
  constexpr int64_t kCacheLine = 64;
  for (int64_t i = 0; i < count; ++i) {
    const auto* const row = reinterpret_cast<const std::byte*>(rows.next());
    for (int64_t j = 0; j < bytes; j += kCacheLine) __builtin_prefetch(row + j, kToWrite, 2);
  }
}

#if HWY_TARGET <= HWY_AVX3
#define SPILLWAY_TRANSPOSE_BODIES
#include "kernels/cpu/transpose_inl.h"
#undef SPILLWAY_TRANSPOSE_BODIES

// to[column * kBlock + row] = rows[row][column] * scale of a vector's rows, zeros up to `depth`.
void pack_vector(const float* const* rows, int64_t count, int64_t size, int64_t depth, float scale,
                 float* to) {
  const __m512 all = _mm512_set1_ps(scale);
  for (int64_t k = 0; k < depth; k += 16) {
    const auto there = static_cast<__mmask16>((1u << std::min<int64_t>(16, size - k)) - 1);
    __m512i square[16];
    for (int64_t i = 0; i < 16; ++i) {
      square[i] =
          i < count
              ? _mm512_castps_si512(_mm512_mul_ps(_mm512_maskz_loadu_ps(there, rows[i] + k), all))
              : _mm512_setzero_si512();
    }
    transpose(square);
    for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + (k + i) * kBlock, square[i]);
  }
}

// rows[row][column] = out[column * kBlock + row] * factor[row] of a vector's rows.
void unpack_vector(const float* out, const float* factor, int64_t count, int64_t depth,
                   float* const* rows) {
  const __m512 all = _mm512_loadu_ps(factor);
  for (int64_t k = 0; k < depth; k += 16) {
    __m512i square[16];
    for (int64_t i = 0; i < 16; ++i) {
      square[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(out + (k + i) * kBlock), all));
    }
    transpose(square);
    if (count == 16) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(rows[i] + k, square[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(rows[i] + k, square[i]);
    }
  }
}
#else
void pack_vector(const float* const* rows, int64_t count, int64_t size, int64_t depth, float scale,
                 float* to) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t i = 0; i < kLanes; ++i) {
      to[k * kBlock + i] = i < count && k < size ? rows[i][k] * scale : 0.0f;
    }
  }
}

void unpack_vector(const float* out, const float* factor, int64_t count, int64_t depth,
                   float* const* rows) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t i = 0; i < count; ++i) rows[i][k] = out[k * kBlock + i] * factor[i];
  }
}
#endif

// Calls use(first row, rows, offset of [depth][block]) for the vectors of a tile.
template <class Use>
HWY_INLINE void for_vectors(int64_t rows, int64_t depth, const Use& use) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    use(row, std::min(kLanes, rows - row), row / kBlock * kBlock * depth + row % kBlock);
  }
}

void PackQueries(const PromptView& view, int64_t first_row, int64_t rows, float* packed) {
  constexpr float kLog2OfE = 1.44269504f;
  const HeadView& head = view.head;
  const int64_t size = head.head_size, depth = key_depth(size);
  RowAddresses<const float> queries(head.q, view, first_row, head.stride, size);
  RowAddresses<const float> later(head.q, view, first_row, head.stride, size);
  const auto prefetch = [&](int64_t count) { prefetch_rows<false>(later, count, size * 4); };
  prefetch(std::min(kLanes, rows));
  for_vectors(rows, depth, [&](int64_t row, int64_t count, int64_t at) {
    prefetch(std::clamp<int64_t>(rows - row - kLanes, 0, kLanes));
    const float* from[kLanes];
    for (int64_t i = 0; i < count; ++i) from[i] = queries.next();
    pack_vector(from, count, size, depth, head.scale * kLog2OfE, packed + at);
  });
}

void StoreTile(const PromptView& view, int64_t first_row, int64_t rows, const float* sum,
               const float* out, float* scratch) {
  const D d;
  const HeadView& head = view.head;
  const int64_t size = head.head_size, depth = key_depth(size);
  const auto element = static_cast<int64_t>(dtype_bytes(head.out_dtype));
  const bool at_once = head.out_dtype == DType::kF32 && size == depth;
  RowAddresses<std::byte> to(head.out, view, first_row, head.out_stride * element, size * element);
  RowAddresses<std::byte> later(head.out, view, first_row, head.out_stride * element,
                                size * element);
  const auto prefetch = [&](int64_t count) { prefetch_rows<true>(later, count, size * element); };
  prefetch(std::min(kLanes, rows));
  for_vectors(rows, depth, [&](int64_t row, int64_t count, int64_t at) {
    prefetch(std::clamp<int64_t>(rows - row - kLanes, 0, kLanes));
    HWY_ALIGN float factor[kLanes];
    hn::Store(hn::Div(hn::Set(d, 1.0f), hn::LoadU(d, sum + row)), d, factor);
    std::byte* rows_to[kLanes];
    float* whole[kLanes];  // Float32 rows of whole lines are stored where they belong.
    for (int64_t i = 0; i < count; ++i) {
      rows_to[i] = to.next();
      whole[i] = at_once ? reinterpret_cast<float*>(rows_to[i]) : scratch + i * depth;
    }
    unpack_vector(out + at, factor, count, depth, whole);
    for (int64_t i = 0; i < count && !at_once; ++i) {
      store_row(head.out_dtype, whole[i], static_cast<size_t>(size), rows_to[i]);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(PackQueries);
HWY_EXPORT(StoreTile);

void pack_queries(const PromptView& view, int64_t first_row, int64_t rows, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackQueries)(view, first_row, rows, packed);
}

void store_tile(const PromptView& view, int64_t first_row, int64_t rows, const float* sum,
                const float* out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(StoreTile)(view, first_row, rows, sum, out, scratch);
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
