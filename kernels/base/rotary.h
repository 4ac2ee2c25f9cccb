// The cosines and sines of rotary position embeddings (Su et al. 2021, arXiv 2104.09864), computed
// as transformers does: frequencies and angles in float32. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/model_shape.h"

namespace spillway {

// theta^(-2 i / dims) for i in [0, dims / 2): the frequencies without scaling.
std::vector<float> rotary_frequencies(double theta, int64_t dims);

// The frequencies of a sequence of `length` positions: rotary.frequencies, unless LongRoPE or
// dynamic scaling chooses others for this length; `scratch` keeps what is computed.
std::span<const float> frequencies_at(const Rotary& rotary, int64_t length,
                                      std::vector<float>* scratch);

// row = the cosines of position * frequencies[i], then the sines, each times `scale`.
// REQUIRES: row.size() == 2 * frequencies.size().
void fill_rotary_row(std::span<const float> frequencies, float scale, int64_t position,
                     std::span<float> row);

}  // namespace spillway
