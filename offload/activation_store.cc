#include "offload/activation_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace spillway {

namespace {

// Micro-batches in the ring: one in use, one on its way home, one or two on their way here.
constexpr uint64_t kStagedBatches = 4;

uint64_t row_bytes(const ActivationStoreOptions& options, double rows) {
  const auto whole = static_cast<uint64_t>(std::ceil(rows));
  return round_up(whole * static_cast<uint64_t>(options.columns) * sizeof(float), kIoAlignment);
}

}  // namespace

ActivationBytes activation_bytes(const ActivationStoreOptions& options) {
  const auto rows = static_cast<double>(options.sweep_rows_max);
  const auto batch = static_cast<double>(options.batch_rows_max);
  if (options.disk_share == 0) return {.memory = row_bytes(options, rows)};
  // Shares hold to within a micro-batch, and each begins at a whole sector.
  const uint64_t stays =
      row_bytes(options, std::min(rows, (1 - options.disk_share) * rows + batch));
  const uint64_t leaves = row_bytes(options, std::min(rows, options.disk_share * rows + batch));
  const uint64_t staging = kStagedBatches * (row_bytes(options, batch) + kIoAlignment);
  return {.memory = stays + staging,
          .staging = staging,
          .disk = leaves + static_cast<uint64_t>(options.sweep_rows_max) * kIoAlignment};
}

Result<std::unique_ptr<ActivationStore>> ActivationStore::open(
    Device& device, const ActivationStoreOptions& options, const File* file) {
  const ActivationBytes bytes = activation_bytes(options);
  SPILLWAY_ASSIGN_OR_RETURN(Buffer rows,
                            device.allocate(Memory::kDevice, bytes.memory - bytes.staging));
  std::unique_ptr<ActivationStore> store(new ActivationStore(options, std::move(rows)));
  if (options.disk_share > 0) {
    SPILLWAY_CHECK(file != nullptr && options.transfers != nullptr);
    SPILLWAY_ASSIGN_OR_RETURN(Buffer ring, device.allocate(Memory::kPinned, bytes.staging));
    store->stager_.emplace(*options.transfers, *file, std::move(ring), options.overlap);
  }
  return store;
}

uint64_t ActivationStore::bytes_of(int64_t rows) const {
  return static_cast<uint64_t>(rows * options_.columns) * sizeof(float);
}

void ActivationStore::begin(std::span<const int64_t> batch_rows, int64_t passes) {
  if (stager_) stager_->flush();  // The last sweep's objects end here.
  batches_.clear();
  objects_.clear();
  uses_.clear();
  double passed = 0, spilled = 0;
  std::byte* memory = rows_.data();
  uint64_t offset = 0;
  for (const int64_t rows : batch_rows) {
    SPILLWAY_CHECK(rows <= options_.batch_rows_max);
    const auto count = static_cast<double>(rows);
    passed += count;
    if (spilled + count / 2 > options_.disk_share * passed || !stager_) {
      batches_.push_back({rows, memory, 0});
      memory += bytes_of(rows);
      continue;
    }
    spilled += count;
    batches_.push_back({rows, nullptr, objects_.size()});
    SpilledObject object;
    object.offset = offset;
    object.piece_bytes = bytes_of(rows);
    objects_.push_back(object);
    offset += round_up(bytes_of(rows), kIoAlignment);
  }
  SPILLWAY_CHECK(memory <= rows_.data() + rows_.bytes());
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (SpilledObject& object : objects_) {
      uses_.push_back({&object, pass == 0 ? 0 : object.piece_bytes, object.piece_bytes});
    }
  }
  next_ = next_use_ = 0;
  if (stager_) stager_->begin(uses_);
}

Result<MatrixView> ActivationStore::acquire() {
  const Batch& batch = batches_[next_];
  std::byte* data = batch.memory;
  if (data == nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(data, stager_->wait(next_use_));
  }
  return dense_matrix(data, DType::kF32, batch.rows, options_.columns);
}

void ActivationStore::release(bool changed) {
  const Batch& batch = batches_[next_];
  if (batch.memory == nullptr) {
    const ByteRange all{0, bytes_of(batch.rows)};
    stager_->finish(next_use_++, std::span(&all, changed ? 1 : 0));
  }
  next_ = (next_ + 1) % batches_.size();
}

void ActivationStore::abandon() {
  if (stager_) stager_->abandon();
}

}  // namespace spillway
