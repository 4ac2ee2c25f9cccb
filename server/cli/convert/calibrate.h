// `convert --calibrate FILE`: the model reads a text, in its own format on this machine's CPU, and
// what goes into its matrix products is noted, for smoothing (offload/convert/smoothing.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "offload/convert/smoothing.h"

namespace spillway {

// The model reads at most this many windows of so many tokens, the first ones of the text. Maxima
// of channels settle early: outliers are in the same channels in every text (SmoothQuant, section
// 3).
constexpr int64_t kCalibrationWindows = 64;
constexpr int64_t kCalibrationTokens = 512;

struct Calibration {
  std::vector<InputMaxima> maxima;  // By layer
  int64_t tokens = 0;               // That were read
};

// `model`: a directory or .gguf file. `say` shows progress lines; `keep_going` is asked between
// sweeps: false ends with kCancelled. Blocks.
Result<Calibration> calibrate(const std::string& model, const std::string& text_file,
                              const std::function<void(const std::string&)>& say,
                              const std::function<bool()>& keep_going);

}  // namespace spillway
