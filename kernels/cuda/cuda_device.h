// The CUDA device while it lacks ops that a model needs: tests use those that it has.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace spillway::cuda {

// kNotFound: there is no such device. Its streams run every op.
Result<std::unique_ptr<Device>> open_unfinished_device(int index);

}  // namespace spillway::cuda
