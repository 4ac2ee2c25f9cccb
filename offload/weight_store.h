// The weights of one model, ready for the kernels. Some slabs are resident in device memory, the
// others stream through rings, sweep after sweep: from disk into host memory, and from there into
// the memory of a discrete device. weight_placement.h decides which.
//
// Thread rule: loading uses its own threads; afterwards the engine thread alone. A sweep acquires
// and releases the embeddings, each layer and the head, in this order, one at a time; a range of
// layers has only some of these.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/layer_range.h"
#include "kernels/device.h"
#include "offload/io/transfer.h"
#include "offload/model_file/model_file.h"
#include "offload/model_file/slab_loader.h"
#include "offload/slab_source.h"
#include "offload/weight_placement.h"
#include "offload/weight_stream.h"
#include "offload/weight_views.h"

namespace spillway {

struct WeightStoreOptions {
  std::optional<LayerRange> layers;  // Only these are loaded and acquired; none: all
  WeightPlacement placement;         // Of the slabs of `layers`; none: all resident
  int64_t positions_max = 0;         // Limit of shape().positions; 0: the model's
  uint64_t ring_bytes = 0;           // Ring for slabs on disk; 0: ring_bytes_good()
  uint64_t device_ring_bytes = 0;    // Ring into the device; 0: to_device.ring_good()
  bool prefetch = true;              // False: load a group only when acquired
  VerifyReads verify = VerifyReads::kEvery;
  TransferQueue* transfers = nullptr;  // Needed with slabs on disk; outlives the store
  File scratch;                        // dummy() only: holds the slabs on disk
  LoadProgress progress;
};

class WeightStore {
 public:
  // Reads every resident slab with direct I/O on several threads and verifies it. Slabs in another
  // layout than the device wants are repacked on the way; `repacked()` says so (slabs on disk
  // cannot be: kInvalidArgument). Blocks.
  static Result<std::unique_ptr<WeightStore>> load(Device& device, const ModelFile& file,
                                                   const WeightStoreOptions& options);

  // Likewise of slabs that are parts of files (slab_source.h). Of one that verifies, those on disk
  // are read once, too; a checkpoint has no checksums to verify.
  static Result<std::unique_ptr<WeightStore>> load(Device& device,
                                                   const std::shared_ptr<const SlabSource>& source,
                                                   const WeightStoreOptions& options);

  // Random weights of a true shape, for benchmarks: matrices uniform with deviation 0.02, norms 1,
  // biases 0, from `seed`. Blocks.
  static Result<std::unique_ptr<WeightStore>> dummy(Device& device, const ModelShape& shape,
                                                    Format format, uint64_t seed,
                                                    WeightStoreOptions options);
  ~WeightStore();

  const ModelShape& shape() const;  // The whole model's
  const LayerRange& layers() const;
  Format format() const;
  bool repacked() const;
  const WeightPlacement& placement() const;  // placement().disk_bytes are read in each sweep.

  // Sets the stream whose work reads the weights, from the first acquire until detach(), which
  // waits for copies under way.
  void attach(Stream& compute);
  void detach();

  // Bytes uploaded to a discrete device for all groups acquired so far.
  uint64_t h2d_bytes() const;

  // Non-blocking: while a group is in use, issues h2d copies of the next group's slabs that are in
  // host memory, while the device's ring has space, and frees host staging whose copies are done.
  // acquire() does so, too; call this again while waiting for anything else.
  void upload_ahead();

  // The group's weights, usable by work queued on the stream until its release. Waits for slabs on
  // disk. After an error, which names file and slab, call restart().
  Result<const LayerWeights*> acquire_embedding();
  void release_embedding();
  Result<const LayerWeights*> acquire(int64_t layer);
  void release(int64_t layer);
  Result<const LayerWeights*> acquire_head();
  void release_head();

  // Ends a sweep early: the next group to be acquired is the first. Blocks on reads under way.
  void restart();

 private:
  struct State;
  explicit WeightStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace spillway
