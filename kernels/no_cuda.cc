// Stands in for kernels/cuda in a build without CUDA.
#include "kernels/device.h"

namespace spillway {

Result<std::unique_ptr<Device>> open_cuda_device(int) {
  return not_found(
      "this build has no CUDA device; configure with --preset cuda, or use --device cpu");
}

}  // namespace spillway
