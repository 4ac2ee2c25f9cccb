// Stands in for kernels/cuda in a build without CUDA.
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/device.h"
#include "kernels/ranks/gpu_ranks.h"

namespace spillway {

Result<std::unique_ptr<Device>> open_cuda_device(int) {
  return not_found(
      "this build has no CUDA device; configure with --preset cuda, or use --device cpu");
}

Result<std::vector<std::unique_ptr<RankGroup>>> gpu_ranks(std::span<const int>) {
  return not_found("this build has no CUDA device, so there are no GPUs to join");
}

Result<std::unique_ptr<RankGroup>> gpu_rank(RankGroup&, Stream&, int) {
  return not_found("this build has no CUDA device, so there are no GPUs to join");
}

namespace cuda {

// Never called: without a CUDA device there is no CUDA stream.
void run_op(CudaContext&, const char*, int64_t, const OpArgs&) {
  SPILLWAY_CHECK(false);
}

}  // namespace cuda

}  // namespace spillway
