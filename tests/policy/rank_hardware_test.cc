#include "policy/rank_hardware.h"

#include <catch2/catch.hpp>

namespace spillway::rank_hardware_test {
namespace {

TEST_CASE("ranks of a CPU divide all of it") {
  HardwareProfile machine;
  machine.compute.kind = "cpu";
  machine.compute.memory_bytes.value = machine.host.memory_bytes.value = 32e9;
  machine.compute.memory_read.value = machine.host.memory_read.value = 40e9;
  machine.compute.matrix = {{Format::kBF16, 8, 4096, 4096, {2e11, 0, 0, 1, ""}}};
  machine.compute.peaks = {{"bf16", "vdpbf16ps", {4e11, 0, 0, 1, ""}}};
  machine.compute.decode_attention_q8.value = 3e10;
  machine.compute.decode_attention_shared.value = 3.2e10;
  machine.compute.decode_attention_q4_shared.value = 1e10;
  machine.compute.decode_attention_q8_shared.value = 2e10;
  machine.disk.read = {{1 << 20, 8, {4e9, 3e9, 5e9, 1, ""}}};
  machine.disk.write = {{1 << 20, 8, {2e9, 0, 0, 1, ""}}};
  machine.disk.processor.value = 1e11;
  const HardwareProfile own = rank_hardware(machine, 4);
  CHECK(own.compute.memory_bytes.value == Approx(32e9));
  CHECK(own.host.memory_read.value == Approx(10e9));
  CHECK(own.compute.memory_read.value == Approx(10e9));
  CHECK(own.compute.matrix[0].rate.value == Approx(5e10));
  CHECK(own.compute.peaks[0].rate.value == Approx(1e11));
  CHECK(own.compute.decode_attention_q8.value == Approx(7.5e9));
  CHECK(own.compute.decode_attention_shared.value == Approx(8e9));
  CHECK(own.compute.decode_attention_q4_shared.value == Approx(2.5e9));
  CHECK(own.compute.decode_attention_q8_shared.value == Approx(5e9));
  CHECK(own.disk.read[0].rate.value == Approx(1e9));
  CHECK(own.disk.read[0].rate.low == Approx(0.75e9));
  CHECK(own.disk.write[0].rate.value == Approx(0.5e9));
  CHECK(own.disk.processor.value == Approx(2.5e10));
}

TEST_CASE("ranks on GPUs have one each, and divide the host") {
  HardwareProfile machine;
  machine.compute.kind = "cuda";
  machine.compute.memory_bytes.value = 16e9;
  machine.compute.matrix = {{Format::kF16, 8, 4096, 4096, {6e13, 0, 0, 1, ""}}};
  machine.host.memory_bytes.value = 64e9;
  machine.link.emplace();
  machine.link->to_device.value = 12e9;
  machine.disk.read = {{1 << 20, 8, {4e9, 0, 0, 1, ""}}};
  const HardwareProfile own = rank_hardware(machine, 2);
  CHECK(own.compute.memory_bytes.value == Approx(16e9));
  CHECK(own.compute.matrix[0].rate.value == Approx(6e13));
  CHECK(own.link->to_device.value == Approx(12e9));
  CHECK(own.host.memory_bytes.value == Approx(64e9));
  CHECK(own.disk.read[0].rate.value == Approx(2e9));
}

}  // namespace
}  // namespace spillway::rank_hardware_test
