#include "offload/model_file/slab_loader.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/base/check.h"
#include "offload/io/checksum.h"
#include "offload/io/parallel_tasks.h"

namespace spillway {

namespace {

// Threads that read, verify or fill slabs: more than one core keeps a disk's queue full, and the
// kernel's page zeroing, the copy and the checksum of 8 MiB overlap with other slabs' reads.
constexpr unsigned kLoaderThreads = 4;

void repack_slab(const TensorInfo& tensor, uint32_t slab, MatrixLayout layout,
                 std::span<const std::byte> from, std::span<std::byte> to) {
  const int64_t rows = tensor.rows_in_slab(slab - tensor.first_slab);
  if (is_quantized(tensor.format)) {
    move_codes(tensor.format, rows, tensor.spec.columns, tensor.layout, from.data(), layout,
               to.data());
    return;
  }
  const DType type = unpacked_type(tensor.format);
  std::vector<std::byte> plain(static_cast<size_t>(rows * tensor.spec.columns) * dtype_bytes(type));
  unpack_rows(tensor.layout, tensor.format, from.data(), rows, tensor.spec.columns, plain.data());
  pack_rows(layout, tensor.format, type, plain.data(), rows, tensor.spec.columns, to.data());
}

}  // namespace

Status read_verified(const ModelFile& file, const File& direct, uint32_t slab,
                     std::span<std::byte> target) {
  const ModelFileTable& table = file.table();
  if (direct.fd() >= 0 && direct.read(table.slabs[slab].offset, target).ok() &&
      seeded_checksum(target, table.slab_seed(slab)) == table.slabs[slab].checksum) {
    return {};
  }
  return file.read_slab(slab, target);
}

Result<std::span<std::byte>> SlabWriter::begin(const SlabLocation& location) {
  location_ = location;
  if (!location.in_device_memory) return std::span(location.memory, location.bytes);
  if (buffer_.bytes() < location.bytes) {
    SPILLWAY_ASSIGN_OR_RETURN(buffer_, device_.allocate(Memory::kPinned, location.bytes));
  }
  if (stream_ == nullptr) stream_ = device_.new_stream("load weights");
  return std::span(buffer_.data(), location.bytes);
}

Status SlabWriter::finish() {
  if (!location_.in_device_memory) return {};
  stream_->copy(location_.memory, buffer_.data(), location_.bytes);
  return stream_->record().wait();
}

Status for_each_slab(Device& device, const ModelFileTable& table,
                     const std::vector<uint32_t>& which, const LoadProgress& progress,
                     const std::function<Status(uint32_t, SlabWriter&)>& body) {
  uint64_t total = 0;
  for (uint32_t slab : which) total += table.slabs[slab].bytes;
  std::atomic<uint64_t> done{0};
  const auto tick = [&] {
    if (progress) progress(done, total);
    return true;
  };
  std::vector<SlabWriter> writers;
  for (unsigned i = 0; i < kLoaderThreads; ++i) writers.emplace_back(device);
  const auto work = [&](size_t index, unsigned thread) -> Status {
    SPILLWAY_RETURN_IF_ERROR(body(which[index], writers[thread]));
    done += table.slabs[which[index]].bytes;
    return {};
  };
  SPILLWAY_RETURN_IF_ERROR(run_tasks(which.size(), kLoaderThreads, work, tick));
  tick();
  return {};
}

const TensorInfo* matrix_tensor_of(const ModelFileTable& table, uint32_t slab) {
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kVector && slab >= tensor.first_slab &&
        slab < tensor.first_slab + tensor.slab_count) {
      return &tensor;
    }
  }
  return nullptr;
}

uint64_t slab_memory_bytes(const ModelFileTable& table, uint32_t slab, MatrixLayout layout) {
  const uint64_t stored = table.slabs[slab].bytes;
  const TensorInfo* tensor = matrix_tensor_of(table, slab);
  if (tensor == nullptr || tensor->spec.kind != WeightKind::kMatrix) return stored;
  const int64_t rows = tensor->rows_in_slab(slab - tensor->first_slab);
  return std::max<uint64_t>(stored,
                            packed_bytes(layout, tensor->format, rows, tensor->spec.columns));
}

File open_direct(const ModelFile& file) {
  Result<File> direct = File::open(file.path(), O_RDONLY | O_DIRECT);
  return direct.ok() ? std::move(direct).value() : File();
}

Status load_slabs(Device& device, const ModelFile& file, const File& direct,
                  const std::vector<uint32_t>& which, const std::vector<SlabLocation>& locations,
                  MatrixLayout layout, const LoadProgress& progress, bool* repacked) {
  const ModelFileTable& table = file.table();
  std::atomic<bool> any{false};
  const auto load = [&](uint32_t slab, SlabWriter& writer) -> Status {
    const uint64_t bytes = table.slabs[slab].bytes;
    SPILLWAY_ASSIGN_OR_RETURN(const std::span<std::byte> target, writer.begin(locations[slab]));
    const TensorInfo* tensor = matrix_tensor_of(table, slab);
    if (tensor == nullptr || tensor->spec.kind != WeightKind::kMatrix || tensor->layout == layout) {
      SPILLWAY_RETURN_IF_ERROR(read_verified(file, direct, slab, target.first(bytes)));
      return writer.finish();
    }
    any = true;
    SPILLWAY_ASSIGN_OR_RETURN(const Buffer packed, device.allocate(Memory::kPinned, bytes));
    const std::span<std::byte> from(packed.data(), packed.bytes());
    SPILLWAY_RETURN_IF_ERROR(read_verified(file, direct, slab, from));
    repack_slab(*tensor, slab, layout, from, target);
    return writer.finish();
  };
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(device, table, which, progress, load));
  *repacked = any;
  return {};
}

}  // namespace spillway
