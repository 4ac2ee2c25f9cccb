#include "server/planning_device.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/weight_layout.h"

namespace spillway {

namespace {

// Whether it computes in bf16 as fast as in f16, as devices from Ampere on do; on older ones (a T4)
// products in bf16 have no units, and take several times as long where they were measured at all.
bool computes_in_bf16(const HardwareProfile::Compute& compute) {
  double bf16 = 0, f16 = 0;
  for (const MatrixFigure& one : compute.matrix) {
    if (one.format == DType::kBF16) bf16 = std::max(bf16, one.rate.value);
    if (one.format == DType::kF16) f16 = std::max(f16, one.rate.value);
  }
  return bf16 >= f16 / 2;
}

class PlanningDevice final : public Device {
 public:
  // `like`: a CPU's formats and layouts are those of this machine's.
  PlanningDevice(const HardwareProfile& hardware, std::unique_ptr<Device> like)
      : name_(hardware.name),
        like_(std::move(like)),
        native_bf16_(like_ ? like_->native_bf16() : computes_in_bf16(hardware.compute)) {
    const HardwareProfile::Compute& compute = hardware.compute;
    memory_.total_bytes = static_cast<uint64_t>(compute.memory_bytes.value);
    memory_.free_bytes = static_cast<uint64_t>(compute.memory_free_bytes.value);
    if (memory_.free_bytes == 0) memory_.free_bytes = memory_.total_bytes;
  }

  DeviceKind kind() const override { return like_ ? DeviceKind::kCpu : DeviceKind::kCuda; }
  std::string_view name() const override { return name_; }
  MemoryInfo memory() const override { return memory_; }

  Result<Buffer> allocate(Memory, size_t) override {
    return Status(Code::kCapacity, "a device on paper has no memory to give");
  }
  std::unique_ptr<Stream> new_stream(std::string_view) override {
    SPILLWAY_CHECK(false);
    return nullptr;
  }

  DType activation_dtype(DType weights) const override {
    if (like_) return like_->activation_dtype(weights);
    if (weights != DType::kQ4) return weights;
    return native_bf16_ ? DType::kBF16 : DType::kF16;
  }
  MatrixLayout matrix_layout(DType weights) const override {
    return like_ ? like_->matrix_layout(weights) : kCudaMatrixLayout;
  }
  bool native_bf16() const override { return native_bf16_; }

 private:
  std::string name_;
  std::unique_ptr<Device> like_;
  bool native_bf16_;
  MemoryInfo memory_;
};

}  // namespace

Result<std::unique_ptr<Device>> planning_device(const HardwareProfile& hardware) {
  std::unique_ptr<Device> like;
  if (hardware.compute.kind == "cpu") {
    SPILLWAY_ASSIGN_OR_RETURN(like, open_cpu_device(1));
  } else if (hardware.compute.kind != "cuda") {
    return invalid_argument("hardware profile \"" + hardware.name + "\": compute.kind is \"" +
                            hardware.compute.kind.substr(0, 64) + "\", must be cpu or cuda");
  }
  return std::unique_ptr<Device>(std::make_unique<PlanningDevice>(hardware, std::move(like)));
}

}  // namespace spillway
