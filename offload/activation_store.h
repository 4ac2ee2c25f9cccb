// The residual stream of a sweep between its layers: rows of each micro-batch, in memory or, for
// blocks whose activations are too many, in a scratch file from where they come and go with every
// layer.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/tensor.h"
#include "offload/spill_stager.h"

namespace spillway {

struct ActivationStoreOptions {
  int64_t columns = 0;         // Of a row, float32
  int64_t sweep_rows_max = 0;  // Of one sweep, all micro-batches
  int64_t batch_rows_max = 0;  // Of one micro-batch
  double disk_share = 0;       // Of a sweep's rows, to within one micro-batch
  bool overlap = true;
  TransferQueue* transfers = nullptr;  // Needed with disk_share; outlives the store
};

// Bytes of each kind that a store with these options takes.
struct ActivationBytes {
  uint64_t memory = 0;   // Of rows that stay, and of the staging ring
  uint64_t staging = 0;  // Of that, the ring
  uint64_t disk = 0;     // Of the scratch file
};
ActivationBytes activation_bytes(const ActivationStoreOptions& options);

class ActivationStore {
 public:
  // `file`: scratch with ActivationBytes::disk bytes of room; none needed without a share on disk.
  static Result<std::unique_ptr<ActivationStore>> open(Device& device,
                                                       const ActivationStoreOptions& options,
                                                       const File* file);

  // Begins a sweep over micro-batches of these many rows, each of which will be used `passes`
  // times: in every pass all of them in order, the first time without reading.
  // REQUIRES: the sums fit the options.
  void begin(std::span<const int64_t> batch_rows, int64_t passes);

  // The rows of the next micro-batch, f32 [rows, columns]. Waits for those on disk. After an error
  // abandon() comes next.
  Result<MatrixView> acquire();

  // They may leave; `changed`: what was acquired has new contents.
  void release(bool changed);

  void abandon();

  double room_wait_seconds() const { return stager_ ? stager_->room_wait_seconds() : 0; }
  uint64_t bytes_read() const { return stager_ ? stager_->bytes_read() : 0; }
  uint64_t bytes_written() const { return stager_ ? stager_->bytes_written() : 0; }

 private:
  ActivationStore(const ActivationStoreOptions& options, Buffer rows)
      : options_(options), rows_(std::move(rows)) {}
  uint64_t bytes_of(int64_t rows) const;

  struct Batch {
    int64_t rows = 0;
    std::byte* memory = nullptr;  // Null: on disk
    size_t object = 0;            // Index into objects_
  };

  ActivationStoreOptions options_;
  Buffer rows_;
  std::vector<Batch> batches_;
  std::vector<SpilledObject> objects_;
  std::vector<SpillUse> uses_;
  std::optional<SpillStager> stager_;
  size_t next_ = 0;      // Batch
  size_t next_use_ = 0;  // Of the stager
};

}  // namespace spillway
