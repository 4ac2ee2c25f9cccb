// The gate of a gated MLP: act(gate) * up, row by row.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gate.cc"
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

// out[i] = act(gate[i]) * up[i] for whole vectors; returns how many numbers these are. `out` may be
// `gate`.
template <Activation kActivation, class T>
size_t gate_vectors(const T* gate, const T* up, size_t count, T* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v =
        hn::Mul(activate(d, kActivation, load_widened(d, gate + i)), load_widened(d, up + i));
    if constexpr (sizeof(T) == 4) {
      hn::StoreU(v, d, out + i);
    } else {
      hn::StoreU(bf16_of(d, v), hn::Rebind<uint16_t, D>(), reinterpret_cast<uint16_t*>(out + i));
    }
  }
  return i;
}

template <Activation kActivation>
void gate_row(DType dtype, const std::byte* gate, const std::byte* up, size_t count,
              std::byte* out) {
  const D d;
  size_t done = 0;
  if (dtype == DType::kF32) {
    done = gate_vectors<kActivation>(reinterpret_cast<const float*>(gate),
                                     reinterpret_cast<const float*>(up), count,
                                     reinterpret_cast<float*>(out));
  } else {
    done = gate_vectors<kActivation>(reinterpret_cast<const hwy::bfloat16_t*>(gate),
                                     reinterpret_cast<const hwy::bfloat16_t*>(up), count,
                                     reinterpret_cast<hwy::bfloat16_t*>(out));
  }
  if (done == count) return;
  // The rest, widened into whole vectors.
  HWY_ALIGN float wide[2][hn::MaxLanes(D())] = {};
  const size_t offset = done * dtype_bytes(dtype);
  convert_elements(dtype, gate + offset, DType::kF32, reinterpret_cast<std::byte*>(wide[0]),
                   count - done);
  convert_elements(dtype, up + offset, DType::kF32, reinterpret_cast<std::byte*>(wide[1]),
                   count - done);
  hn::Store(hn::Mul(activate(d, kActivation, hn::Load(d, wide[0])), hn::Load(d, wide[1])), d,
            wide[0]);
  convert_elements(DType::kF32, reinterpret_cast<const std::byte*>(wide[0]), dtype, out + offset,
                   count - done);
}

void GateRow(Activation activation, DType dtype, const std::byte* gate, const std::byte* up,
             size_t count, std::byte* out) {
  switch (activation) {
    case Activation::kNone:
      return gate_row<Activation::kNone>(dtype, gate, up, count, out);
    case Activation::kRelu:
      return gate_row<Activation::kRelu>(dtype, gate, up, count, out);
    case Activation::kGelu:
      return gate_row<Activation::kGelu>(dtype, gate, up, count, out);
    case Activation::kGeluTanh:
      return gate_row<Activation::kGeluTanh>(dtype, gate, up, count, out);
    case Activation::kSilu:
      return gate_row<Activation::kSilu>(dtype, gate, up, count, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::cpu {

HWY_EXPORT(GateRow);

void run(CpuContext& context, const GateArgs& args) {
  constexpr int64_t kRowsPerTask = 8;
  const size_t half = static_cast<size_t>(args.out.columns) * dtype_bytes(args.in.dtype);
  context.parallel_for((args.in.rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t last = std::min(args.in.rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < last; ++row) {
      const std::byte* gate = args.in.row(row);
      HWY_DYNAMIC_DISPATCH(GateRow)
      (args.activation, args.in.dtype, gate, gate + half, static_cast<size_t>(args.out.columns),
       args.out.row(row));
    }
  });
}

}  // namespace spillway::cpu
#endif  // HWY_ONCE
