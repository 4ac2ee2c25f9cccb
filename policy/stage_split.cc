#include "policy/stage_split.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace spillway {

namespace {

// What a layer takes that is read from disk in every sweep, in layers that are in memory: memory is
// 10 to 30 times as fast as one disk, and large blocks hide a part of it.
constexpr double kStreamedLayer = 10;

}  // namespace

std::vector<int64_t> split_layers(int64_t layers, uint64_t layer_bytes,
                                  std::span<const StageMachine> stages) {
  SPILLWAY_CHECK(!stages.empty() && layers >= static_cast<int64_t>(stages.size()));
  const auto seconds = [&](const StageMachine& stage, int64_t count) {
    const uint64_t room = stage.memory_bytes - std::min(stage.memory_bytes, stage.other_bytes);
    const auto in_memory = static_cast<double>(
        layer_bytes == 0 ? count : std::min<uint64_t>(room / layer_bytes, count));
    const double streamed = static_cast<double>(count) - in_memory;
    return (stage.other_layers + in_memory + kStreamedLayer * streamed) / stage.speed;
  };
  // Each takes longer with every layer, so giving each layer to whoever is done first with it is
  // best.
  std::vector<int64_t> counts(stages.size(), 1);
  for (int64_t given = static_cast<int64_t>(stages.size()); given < layers; ++given) {
    size_t best = 0;
    for (size_t i = 1; i < stages.size(); ++i) {
      if (seconds(stages[i], counts[i] + 1) < seconds(stages[best], counts[best] + 1)) best = i;
    }
    ++counts[best];
  }
  return counts;
}

}  // namespace spillway
