// Expansion of quantised rows into the format of activations (expand.cu).
#pragma once

#include "kernels/ops.h"

namespace spillway::cuda {

class CudaContext;

// Expands the slab's rows of a quantised `format`, `out.columns` numbers each, into the first
// slab.rows rows of `out`. The caller checks the launch.
void expand_slab(CudaContext& context, Format format, const WeightSlab& slab,
                 const MatrixView& out);

}  // namespace spillway::cuda
