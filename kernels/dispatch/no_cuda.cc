// Stands in for kernels/cuda in a build without CUDA.
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/device.h"

namespace spillway {

Result<std::unique_ptr<Device>> open_cuda_device(int) {
  return not_found(
      "this build has no CUDA device; configure with --preset cuda, or use --device cpu");
}

namespace cuda {

// No device, no stream of it, no call.

void begin_span(CudaContext&, const char*, const char*, int64_t) {
  SPILLWAY_CHECK(false);
}
void end_span(CudaContext&) {
  SPILLWAY_CHECK(false);
}
void gather_rows(CudaContext&, const GatherArgs&) {
  SPILLWAY_CHECK(false);
}
void normalize(CudaContext&, const NormArgs&) {
  SPILLWAY_CHECK(false);
}
void convert_rows(CudaContext&, const ConvertArgs&) {
  SPILLWAY_CHECK(false);
}
void draw_columns(CudaContext&, const DrawArgs&) {
  SPILLWAY_CHECK(false);
}
void expand_rows(CudaContext&, const ExpandArgs&) {
  SPILLWAY_CHECK(false);
}
void linear(CudaContext&, const LinearArgs&) {
  SPILLWAY_CHECK(false);
}
void attention(CudaContext&, const AttentionArgs&) {
  SPILLWAY_CHECK(false);
}

}  // namespace cuda

}  // namespace spillway
