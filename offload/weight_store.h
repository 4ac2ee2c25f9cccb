// The weights of one model, ready for the kernels. In this version every slab is resident in device
// memory; acquire/release is the seam where streaming will wait for a layer and let it go.
//
// Thread rule: loading uses its own threads; afterwards the engine thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/decoder_layer.h"
#include "kernels/device.h"
#include "offload/model_file.h"

namespace spillway {

struct EmbeddingWeights {
  WeightMatrix tokens;
  WeightMatrix positions;   // No rows: the model has no table of positions.
  WeightMatrix project_in;  // No rows: embeddings are as wide as the stream.
};

struct HeadWeights {
  const float* norm_weight = nullptr;
  const float* norm_bias = nullptr;
  WeightMatrix project_out;
  WeightMatrix head;
};

// Called from loading threads, serialised, with bytes done and in all.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

class WeightStore {
 public:
  // Reads every slab with direct I/O on several threads and verifies it. Slabs in another layout
  // than the device wants are repacked on the way; `repacked()` says so. Blocks.
  static Result<std::unique_ptr<WeightStore>> load(Device& device, const ModelFile& file,
                                                   const LoadProgress& progress);

  // Random weights of a true shape, for benchmarks: matrices uniform with deviation 0.02, norms 1,
  // biases 0, from `seed`. Blocks.
  static Result<std::unique_ptr<WeightStore>> dummy(Device& device, const ModelShape& shape,
                                                    DType format, uint64_t seed,
                                                    const LoadProgress& progress);
  ~WeightStore();

  const ModelShape& shape() const;
  DType format() const;
  bool repacked() const;
  uint64_t resident_bytes() const;

  const EmbeddingWeights& embedding() const;
  const HeadWeights& head() const;

  // The layer's weights, usable by work queued on the stream until release(). An error says that
  // they could not be brought here.
  Result<const LayerWeights*> acquire(int64_t layer);
  void release(int64_t layer);

 private:
  struct State;
  explicit WeightStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace spillway
