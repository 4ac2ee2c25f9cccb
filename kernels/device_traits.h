// DeviceTraits: the properties of a device that a plan needs: its kind, its memory, the formats and
// layouts its kernels want. Made from an open Device (traits_of) or from a hardware profile
// (scheduler/planning/machine.h), so that planning needs no device.
#pragma once

#include <array>
#include <string>

#include "kernels/base/format.h"
#include "kernels/device.h"
#include "kernels/weight_layout.h"

namespace spillway {

struct DeviceTraits {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;
  MemoryInfo memory;
  bool native_bf16 = false;

  struct OfFormat {
    DType activation = DType::kF32;
    MatrixLayout layout = MatrixLayout::kRows;
    bool in_int8 = false;
  };
  std::array<OfFormat, kFormatCount> formats;  // Indexed by Format

  // Whether the device has memory of its own; else its memory is the host's.
  bool discrete() const { return kind != DeviceKind::kCpu; }
  // See Device's functions of these names.
  DType activation_dtype(Format weights) const { return of(weights).activation; }
  MatrixLayout matrix_layout(Format weights) const { return of(weights).layout; }
  bool in_int8(Format weights) const { return of(weights).in_int8; }

 private:
  const OfFormat& of(Format weights) const { return formats.at(static_cast<size_t>(weights)); }
};

inline DeviceTraits traits_of(const Device& device) {
  DeviceTraits traits;
  traits.kind = device.kind();
  traits.name = device.name();
  traits.memory = device.memory();
  traits.native_bf16 = device.native_bf16();
  for (const Format weights : kFormats) {
    traits.formats[static_cast<size_t>(weights)] = {
        device.activation_dtype(weights), device.matrix_layout(weights), device.in_int8(weights)};
  }
  return traits;
}

}  // namespace spillway
