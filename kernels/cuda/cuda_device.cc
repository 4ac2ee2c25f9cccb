// The CUDA device of builds that have the toolkit. In this version it finds the accelerator and
// says that nothing computes on it yet; the seam (kernels/device.h) is what the rest is written
// against.
#include <cuda_runtime.h>

#include <string>

#include "kernels/device.h"

namespace spillway {

Result<std::unique_ptr<Device>> open_cuda_device(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return not_found(std::string("no CUDA device: ") + cudaGetErrorString(error) +
                     "; use --device cpu");
  }
  if (index < 0 || index >= count) {
    return not_found("there is no CUDA device " + std::to_string(index) + ", only " +
                     std::to_string(count));
  }
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return Status(Code::kDeviceLost, std::string("CUDA: ") + cudaGetErrorString(error));
  }
  return invalid_argument("this version does not compute on CUDA devices yet (found " +
                          std::string(properties.name) + "); use --device cpu");
}

}  // namespace spillway
