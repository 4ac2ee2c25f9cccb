#include "scheduler/planning/profile_traits.h"

#include <algorithm>

#include "kernels/weight_layout.h"

namespace spillway {

namespace {

// Whether the device computes in bf16 as fast as in f16, as devices from Ampere on do; older ones
// (a T4) have no units for bf16 matmuls, which take several times as long where they were measured
// at all.
bool computes_in_bf16(const HardwareProfile::Compute& compute) {
  double bf16 = 0, f16 = 0;
  for (const MatrixFigure& one : compute.matrix) {
    if (one.format == Format::kBF16) bf16 = std::max(bf16, one.rate.value);
    if (one.format == Format::kF16) f16 = std::max(f16, one.rate.value);
  }
  return bf16 >= f16 / 2;
}

}  // namespace

Result<DeviceTraits> traits_of(const HardwareProfile& hardware) {
  const HardwareProfile::Compute& compute = hardware.compute;
  DeviceTraits traits;
  if (compute.kind == "cpu") {
    SPILLWAY_ASSIGN_OR_RETURN(const auto like, open_cpu_device(1));
    traits = traits_of(*like);
    for (const Format weights : kFormats) {
      traits.formats[static_cast<size_t>(weights)].in_int8 = compute.in_int8 && takes_int8(weights);
    }
  } else if (compute.kind == "cuda") {
    traits.kind = DeviceKind::kCuda;
    traits.native_bf16 = computes_in_bf16(compute);
    for (const Format weights : kFormats) {
      traits.formats[static_cast<size_t>(weights)] = {
          gpu_activation_dtype(weights, traits.native_bf16), kCudaMatrixLayout, false};
    }
  } else {
    return invalid_argument("hardware profile \"" + hardware.name + "\": compute.kind is \"" +
                            compute.kind.substr(0, 64) + "\", must be cpu or cuda");
  }
  traits.name = hardware.name;
  traits.memory = {};
  traits.memory.total_bytes = static_cast<uint64_t>(compute.memory_bytes.value);
  traits.memory.free_bytes = static_cast<uint64_t>(compute.memory_free_bytes.value);
  if (traits.memory.free_bytes == 0) traits.memory.free_bytes = traits.memory.total_bytes;
  return traits;
}

}  // namespace spillway
