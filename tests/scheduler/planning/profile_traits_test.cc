// A device on paper computes in the formats that the real one would.
#include "scheduler/planning/profile_traits.h"

#include <catch2/catch.hpp>
#include <utility>

#include "offload/config_files.h"

namespace spillway::profile_traits_test {
namespace {

TEST_CASE("a device on paper has the 16-bit format in which the real one is fast") {
  for (const auto& [name, dtype] :
       {std::pair{"t4-16gb", DType::kF16}, {"a100-40gb", DType::kBF16}, {"h200", DType::kBF16}}) {
    INFO(name);
    const auto device = traits_of(find_hardware_profile(name).value()).value();
    CHECK(device.activation_dtype(Format::kQ4) == dtype);
    CHECK(device.native_bf16 == (dtype == DType::kBF16));
    CHECK(device.activation_dtype(Format::kBF16) == DType::kBF16);
  }
}

TEST_CASE("products in bf16 that were measured far slower than in f16 have no units of their own") {
  HardwareProfile hardware = find_hardware_profile("h200").value();
  for (MatrixFigure& figure : hardware.compute.matrix) {
    if (figure.format == Format::kBF16) figure.rate.value /= 8;
  }
  CHECK(traits_of(hardware).value().activation_dtype(Format::kQ4) == DType::kF16);
  // Nothing is known of it.
  hardware.compute.matrix.clear();
  CHECK(traits_of(hardware).value().native_bf16);
}

TEST_CASE("a CPU on paper multiplies in 8 bits what its profile measured so") {
  HardwareProfile hardware = find_hardware_profile("cpu-2-core-24gb").value();
  for (const bool measured : {false, true}) {
    hardware.compute.in_int8 = measured;
    const auto device = traits_of(hardware).value();
    CHECK(device.in_int8(Format::kQ4) == measured);
    CHECK(device.in_int8(Format::kQ8) == measured);
    CHECK_FALSE(device.in_int8(Format::kBF16));
  }
}

}  // namespace
}  // namespace spillway::profile_traits_test
