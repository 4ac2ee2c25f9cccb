#include "offload/activation_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

// Micro-batches in a ring: one in use, one being written back, one or two being uploaded.
constexpr uint64_t kStagedBatches = 4;

uint64_t row_bytes(const ActivationStoreOptions& options, double rows) {
  const auto whole = static_cast<uint64_t>(std::ceil(rows));
  return round_up(whole * static_cast<uint64_t>(options.columns) * sizeof(float), kIoAlignment);
}

}  // namespace

ActivationBytes activation_bytes(const ActivationStoreOptions& options) {
  const auto rows = static_cast<double>(options.sweep_rows_max);
  const auto batch = static_cast<double>(options.batch_rows_max);
  // Shares are exact to within a micro-batch, and each begins at a whole sector.
  const auto share_bytes = [&](double share) -> uint64_t {
    if (share <= 0) return 0;
    return share >= 1 ? row_bytes(options, rows)
                      : row_bytes(options, std::min(rows, share * rows + batch));
  };
  const double away = options.disk_share + options.host_share;
  const uint64_t ring = kStagedBatches * (row_bytes(options, batch) + kIoAlignment);
  // Rounding may leave a micro-batch on the device whatever its share.
  ActivationBytes bytes{.memory = share_bytes(std::max(1 - away, 1e-9)),
                        .host = share_bytes(options.host_share)};
  if (options.disk_share > 0) {
    bytes.staging = ring;
    bytes.disk = share_bytes(options.disk_share) +
                 static_cast<uint64_t>(options.sweep_rows_max) * kIoAlignment;
  }
  if (options.discrete && away > 0) bytes.device_ring = ring;
  return bytes;
}

Result<std::unique_ptr<ActivationStore>> ActivationStore::open(
    Device& device, Stream& compute, const ActivationStoreOptions& options, const File* file) {
  SPILLWAY_CHECK(options.discrete == device.discrete());
  std::unique_ptr<ActivationStore> store(new ActivationStore(options));
  SPILLWAY_RETURN_IF_ERROR(store->allocate(device, compute, file));
  return store;
}

Status ActivationStore::allocate(Device& device, Stream& compute, const File* file) {
  const ActivationBytes bytes = activation_bytes(options_);
  SPILLWAY_ASSIGN_OR_RETURN(rows_, device.allocate(Memory::kDevice, bytes.memory));
  SPILLWAY_ASSIGN_OR_RETURN(host_rows_, device.allocate(Memory::kPinned, bytes.host));
  if (bytes.staging > 0) {
    SPILLWAY_CHECK(file != nullptr && options_.transfers != nullptr);
    SPILLWAY_ASSIGN_OR_RETURN(Buffer ring, device.allocate(Memory::kPinned, bytes.staging));
    stager_.emplace(*options_.transfers, *file, std::move(ring), options_.overlap);
  }
  if (bytes.device_ring > 0) {
    SPILLWAY_ASSIGN_OR_RETURN(ring_memory_, device.allocate(Memory::kDevice, bytes.device_ring));
    ring_.emplace(device, compute, std::span(ring_memory_.data(), ring_memory_.bytes()),
                  "activations");
  }
  return {};
}

uint64_t ActivationStore::bytes_of(int64_t rows) const {
  return static_cast<uint64_t>(rows * options_.columns) * sizeof(float);
}

void ActivationStore::begin(std::span<const int64_t> batch_rows, int64_t passes) {
  if (stager_) stager_->flush();  // The last sweep's objects are destroyed here.
  batches_.clear();
  objects_.clear();
  uses_.clear();
  double passed = 0, on_disk = 0, on_host = 0;
  std::byte* memory = rows_.data();
  std::byte* host = host_rows_.data();
  uint64_t offset = 0;
  for (const int64_t rows : batch_rows) {
    SPILLWAY_CHECK(rows <= options_.batch_rows_max);
    const auto count = static_cast<double>(rows);
    passed += count;
    if (stager_ && on_disk + count / 2 <= options_.disk_share * passed) {
      on_disk += count;
      batches_.push_back({.rows = rows, .tier = Tier::kDisk});
      SpilledObject object;
      object.offset = offset;
      object.piece_bytes = bytes_of(rows);
      objects_.push_back(object);
      offset += round_up(bytes_of(rows), kIoAlignment);
    } else if (options_.host_share > 0 && on_host + count / 2 <= options_.host_share * passed) {
      on_host += count;
      batches_.push_back({.rows = rows, .tier = Tier::kHost, .memory = host});
      host += bytes_of(rows);
    } else {
      batches_.push_back({.rows = rows, .memory = memory});
      memory += bytes_of(rows);
    }
  }
  SPILLWAY_CHECK(memory <= rows_.data() + rows_.bytes());
  SPILLWAY_CHECK(host <= host_rows_.data() + host_rows_.bytes());
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (SpilledObject& object : objects_) {
      uses_.push_back({&object, pass == 0 ? 0 : object.piece_bytes, object.piece_bytes});
    }
  }
  acquired_ = released_ = next_use_ = 0;
  if (stager_) stager_->begin(uses_);
}

// Blocks until the device's write-back is done, then passes it on to the stager.
Status ActivationStore::finish_write_back() {
  if (!write_backs_) return {};
  const WriteBack last = *std::exchange(write_backs_, std::nullopt);
  SPILLWAY_RETURN_IF_ERROR(last.written_back.wait());
  const ByteRange all{0, last.bytes};
  stager_->finish(next_use_++, std::span(&all, last.bytes > 0 ? 1 : 0));
  return {};
}

Result<MatrixView> ActivationStore::acquire() {
  Batch& batch = batches_[acquired_];
  if (batch.tier == Tier::kDisk) {
    SPILLWAY_RETURN_IF_ERROR(finish_write_back());
    SPILLWAY_ASSIGN_OR_RETURN(batch.memory, stager_->wait(next_use_));
  }
  std::byte* data = batch.memory;
  if (ring_ && batch.tier != Tier::kDevice) {
    const uint64_t bytes = bytes_of(batch.rows);
    data = ring_->upload(batch.memory, batch.uses == 0 ? 0 : bytes, bytes, batch.written_back);
    SPILLWAY_CHECK(data != nullptr);  // The ring holds four batches; all but one are released.
    ring_->arrive();
  }
  ++batch.uses;
  acquired_ = (acquired_ + 1) % batches_.size();
  return dense_matrix(data, DType::kF32, batch.rows, options_.columns);
}

void ActivationStore::release(bool changed) {
  Batch& batch = batches_[released_];
  released_ = (released_ + 1) % batches_.size();
  if (batch.tier == Tier::kDevice) return;
  const ByteRange all{0, bytes_of(batch.rows)};
  const std::span<const ByteRange> changes(&all, changed ? 1 : 0);
  if (ring_) {
    const Event written_back = ring_->write_back(batch.memory, changes);
    if (batch.tier == Tier::kDisk) {
      write_backs_ = WriteBack{changed ? all.to : 0, written_back};
    } else {
      batch.written_back = written_back;
    }
    return;
  }
  stager_->finish(next_use_++, changes);
}

Status ActivationStore::end_sweep() {
  SPILLWAY_RETURN_IF_ERROR(finish_write_back());
  return ring_ ? ring_->sync() : Status();
}

void ActivationStore::abandon() {
  write_backs_.reset();
  if (ring_) ring_->clear();
  if (stager_) stager_->abandon();
}

}  // namespace spillway
