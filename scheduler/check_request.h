// Whether a model can run a request at all, whatever else runs.
#pragma once

#include "kernels/base/model_shape.h"
#include "kernels/base/status.h"
#include "scheduler/request.h"

namespace spillway {

// kInvalidArgument: an empty prompt, lengths that contradict each other or exceed the model's
// positions, tokens outside its vocabulary.
Status check_request(const Request& request, const ModelShape& model);

}  // namespace spillway
