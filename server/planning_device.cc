#include "server/planning_device.h"

#include "kernels/base/check.h"
#include "kernels/weight_layout.h"

namespace spillway {

namespace {

class PlanningDevice final : public Device {
 public:
  // `like`: a CPU's formats and layouts are those of this machine's.
  PlanningDevice(const HardwareProfile& hardware, std::unique_ptr<Device> like)
      : name_(hardware.name), like_(std::move(like)) {
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
    return weights == DType::kQ4 ? DType::kBF16 : weights;
  }
  MatrixLayout matrix_layout(DType weights) const override {
    return like_ ? like_->matrix_layout(weights) : kCudaMatrixLayout;
  }
  bool native_bf16() const override { return like_ == nullptr || like_->native_bf16(); }

 private:
  std::string name_;
  std::unique_ptr<Device> like_;
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
