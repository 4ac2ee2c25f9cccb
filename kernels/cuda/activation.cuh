// Activation functions on the device.
#pragma once

#include "kernels/base/model_shape.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0.0f ? x : (x <= 0.0f ? 0.0f : x);  // NaN stays.
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
  }
  return x;
}

}  // namespace spillway::cuda
