#include "kernels/cpu/epilogue.h"

#include "kernels/cpu/gemm_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/epilogue.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/activation_inl.h"
#include "kernels/cpu/vector_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

template <Activation kActivation, bool kGated>
void store_rows(const TileStore& s) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  // As locals: the compiler would read them again after every store.
  const auto columns = static_cast<size_t>(s.columns);
  const float* HWY_RESTRICT const bias = s.bias;
  const float* HWY_RESTRICT const gate_bias = s.gate_bias;
  const bool accumulate = s.accumulate;
  const V scale = hn::Set(d, s.scale);  // A scale of 1 changes no bit.
  const size_t whole = columns / lanes * lanes;
  // The tile is 64 wide, so vectors may be computed past its last column.
  const auto with_bias = [&](const float* HWY_RESTRICT numbers, const float* HWY_RESTRICT more,
                             size_t j) {
    const V v = hn::Load(d, numbers + j);
    return more == nullptr ? v : hn::Add(v, load_up_to(d, more + j, columns - j));
  };
  const float* HWY_RESTRICT gate = nullptr;
  const auto finished = [&](const float* HWY_RESTRICT x, size_t j) {
    const V v = with_bias(x, bias, j);
    if constexpr (kGated)
      return hn::Mul(activate(d, kActivation, with_bias(gate, gate_bias, j)), v);
    return hn::Mul(activate(d, kActivation, v), scale);
  };
  for (int64_t row = 0; row < s.rows; ++row) {
    const float* HWY_RESTRICT x = s.tile + row * kGemmColumns;
    if constexpr (kGated) gate = s.gate + row * kGemmColumns;
    const auto offset = static_cast<size_t>(row * s.out_stride);
    if (s.out_dtype == DType::kBF16) {
      uint16_t* HWY_RESTRICT out = reinterpret_cast<uint16_t*>(s.out) + offset;
      for (size_t j = 0; j < whole; j += lanes) {
        hn::StoreU(bf16_of(d, finished(x, j)), hn::Rebind<uint16_t, D>(), out + j);
      }
      if (whole == columns) continue;
      HWY_ALIGN float rest[hn::MaxLanes(d)];
      hn::Store(finished(x, whole), d, rest);
      store_bf16(rest, columns - whole, out + whole);
      continue;
    }
    float* HWY_RESTRICT out = reinterpret_cast<float*>(s.out) + offset;
    for (size_t j = 0; j < whole; j += lanes) {
      V v = finished(x, j);
      if (accumulate) v = hn::Add(v, hn::LoadU(d, out + j));
      hn::StoreU(v, d, out + j);
    }
    if (whole == columns) continue;
    V v = finished(x, whole);
    if (accumulate) v = hn::Add(v, load_up_to(d, out + whole, columns - whole));
    store_up_to(d, v, out + whole, columns - whole);
  }
}

template <Activation kActivation>
void store_gated_or_not(const TileStore& s) {
  s.gate == nullptr ? store_rows<kActivation, false>(s) : store_rows<kActivation, true>(s);
}

void StoreTile(const TileStore& s) {
  switch (s.activation) {
    case Activation::kNone:
      return store_gated_or_not<Activation::kNone>(s);
    case Activation::kRelu:
      return store_gated_or_not<Activation::kRelu>(s);
    case Activation::kGelu:
      return store_gated_or_not<Activation::kGelu>(s);
    case Activation::kGeluTanh:
      return store_gated_or_not<Activation::kGeluTanh>(s);
    case Activation::kSilu:
      return store_gated_or_not<Activation::kSilu>(s);
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
