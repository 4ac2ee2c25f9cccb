// The residual stream of a sweep between its layers: rows of each micro-batch, in the device's
// memory or, for blocks whose activations do not fit there, in host memory (of a discrete device's
// host) or a scratch file, from which every layer reads them and to which it writes them back.
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
  int64_t columns = 0;         // float32 values of a row
  int64_t sweep_rows_max = 0;  // Rows of one sweep, all micro-batches
  int64_t batch_rows_max = 0;  // Rows of one micro-batch
  double disk_share = 0;       // Share of a sweep's rows, to within one micro-batch
  double host_share = 0;       // Likewise; on a discrete device
  bool discrete = false;       // The device has its own memory.
  bool overlap = true;
  TransferQueue* transfers = nullptr;  // Needed with disk_share; outlives the store
};

// Bytes of each kind that a store with these options takes.
struct ActivationBytes {
  uint64_t memory = 0;       // Rows resident on the device
  uint64_t host = 0;         // Rows resident in host memory
  uint64_t staging = 0;      // Ring of host memory
  uint64_t device_ring = 0;  // Ring of a discrete device's memory
  uint64_t disk = 0;         // Scratch file
};
ActivationBytes activation_bytes(const ActivationStoreOptions& options);

class ActivationStore {
 public:
  // `file`: scratch file of ActivationBytes::disk bytes; not needed without a share on disk.
  // `compute` is the stream whose work uses the rows.
  static Result<std::unique_ptr<ActivationStore>> open(Device& device, Stream& compute,
                                                       const ActivationStoreOptions& options,
                                                       const File* file);

  // Begins a sweep over micro-batches with `batch_rows` rows. Each is used `passes` times: every
  // pass uses all of them in order, the first one without reading. REQUIRES: the sums fit the
  // options.
  void begin(std::span<const int64_t> batch_rows, int64_t passes);

  // The rows of the next micro-batch, f32 [rows, columns]. Waits for those on disk. After an error
  // call abandon(). REQUIRES: the micro-batch before is released; with nothing on disk, the
  // micro-batch before that.
  Result<MatrixView> acquire();

  // Releases the oldest acquired micro-batch; `changed`: its rows have new contents.
  void release(bool changed);

  // Ends the sweep, after its last release. Blocks on copies from the device.
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
    std::byte* memory = nullptr;  // Host staging memory while in use, if on disk
    uint64_t uses = 0;            // In this sweep
    Event written_back = {};      // If on the host: happens when the last use's rows are there
  };

  ActivationStoreOptions options_;
  Buffer rows_, host_rows_, ring_memory_;
  std::vector<Batch> batches_;
  std::vector<SpilledObject> objects_;
  std::vector<SpillUse> uses_;
  std::optional<SpillStager> stager_;
  std::optional<DeviceRing> ring_;
  // Rows that go to disk once the device has copied them back.
  struct WriteBack {
    uint64_t bytes;  // 0: unchanged
    Event written_back;
  };
  std::optional<WriteBack> write_backs_;
  size_t acquired_ = 0, released_ = 0;  // Index of the next batch
  size_t next_use_ = 0;                 // The stager's next use
};

}  // namespace spillway
