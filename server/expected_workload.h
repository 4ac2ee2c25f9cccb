// The requests that a command expects, for which it has a plan searched. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/model_shape.h"
#include "policy/sweep_schedule.h"

namespace spillway {

// If nothing is offloaded, a larger block costs nothing, and requests shorter than expected fill
// it.
constexpr int64_t kBlockInPlace = 256;

// Cuts its lengths to the model's positions.
void cut_workload(const ModelShape& shape, std::vector<RequestGroup>* workload);

// "64 sequences of 512 + 128 tokens", with means for mixed lengths; "full blocks of ..." where the
// number is open.
std::string workload_text(std::span<const RequestGroup> workload);

}  // namespace spillway
