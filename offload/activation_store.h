// The residual stream of a sweep between its layers: rows of each micro-batch, in the device's
// memory or, for blocks whose activations are too many, in host memory (where that is another) or
// a scratch file, from where they come and go with every layer.
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
#include "offload/device_ring.h"
#include "offload/io/spill_stager.h"
#include "offload/tier.h"

namespace spillway {

struct ActivationStoreOptions {
  int64_t columns = 0;         // Of a row, float32
  int64_t sweep_rows_max = 0;  // Of one sweep, all micro-batches
  int64_t batch_rows_max = 0;  // Of one micro-batch
  double disk_share = 0;       // Of a sweep's rows, to within one micro-batch
  double host_share = 0;       // The same; on a discrete device
  bool discrete = false;       // The device has memory of its own.
  bool overlap = true;
  TransferQueue* transfers = nullptr;  // Needed with disk_share; outlives the store
};

// Bytes of each kind that a store with these options takes.
struct ActivationBytes {
  uint64_t memory = 0;       // Of rows that stay on the device
  uint64_t host = 0;         // Of rows in host memory
  uint64_t staging = 0;      // Of the ring of host memory
  uint64_t device_ring = 0;  // Of the ring of a discrete device's memory
  uint64_t disk = 0;         // Of the scratch file
};
ActivationBytes activation_bytes(const ActivationStoreOptions& options);

class ActivationStore {
 public:
  // `file`: scratch with ActivationBytes::disk bytes of room; none needed without a share on disk.
  // `compute` is the stream whose work uses the rows.
  static Result<std::unique_ptr<ActivationStore>> open(Device& device, Stream& compute,
                                                       const ActivationStoreOptions& options,
                                                       const File* file);

  // Begins a sweep over micro-batches of these many rows, each of which will be used `passes`
  // times: in every pass all of them in order, the first time without reading.
  // REQUIRES: the sums fit the options.
  void begin(std::span<const int64_t> batch_rows, int64_t passes);

  // The rows of the next micro-batch, f32 [rows, columns]. Waits for those on disk. After an error
  // abandon() comes next. REQUIRES: the one before is released; with nothing on disk, the one
  // before that.
  Result<MatrixView> acquire();

  // The oldest in use may leave; `changed`: what was acquired has new contents.
  void release(bool changed);

  // After the last release of a sweep. Blocks on copies from the device.
  Status end_sweep();

  void abandon();

  double room_wait_seconds() const { return stager_ ? stager_->room_wait_seconds() : 0; }
  uint64_t h2d_bytes() const { return ring_ ? ring_->h2d_bytes() : 0; }
  uint64_t d2h_bytes() const { return ring_ ? ring_->d2h_bytes() : 0; }
  uint64_t bytes_read() const { return stager_ ? stager_->bytes_read() : 0; }
  uint64_t bytes_written() const { return stager_ ? stager_->bytes_written() : 0; }

 private:
  explicit ActivationStore(const ActivationStoreOptions& options) : options_(options) {}
  Status allocate(Device& device, Stream& compute, const File* file);
  uint64_t bytes_of(int64_t rows) const;
  Status finish_write_back();

  struct Batch {
    int64_t rows = 0;
    Tier tier = Tier::kDevice;
    std::byte* memory = nullptr;  // Of the host for a while, if on disk
    uint64_t uses = 0;            // Of this sweep
    Event home = {};              // When the last use's rows are there, if on the host
  };

  ActivationStoreOptions options_;
  Buffer rows_, host_rows_, ring_memory_;
  std::vector<Batch> batches_;
  std::vector<SpilledObject> objects_;
  std::vector<SpillUse> uses_;
  std::optional<SpillStager> stager_;
  std::optional<DeviceRing> ring_;
  // What goes to disk when it is home from the device.
  struct WriteBack {
    uint64_t bytes;  // 0: unchanged
    Event home;
  };
  std::optional<WriteBack> write_backs_;
  size_t acquired_ = 0, released_ = 0;  // Batch that comes next
  size_t next_use_ = 0;                 // Of the stager
};

}  // namespace spillway
