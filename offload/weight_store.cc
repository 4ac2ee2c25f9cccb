#include "offload/weight_store.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/aligned_bytes.h"
#include "offload/dummy_weights.h"
#include "offload/weight_stream.h"

namespace spillway {

struct WeightStore::State {
  State(ModelFileTable t, MatrixLayout l)
      : table(std::move(t)), groups(weight_groups(table)), views(table, l), layout(l) {}

  const ModelFileTable table;
  const std::vector<uint32_t> groups;  // By slab
  WeightViews views;
  const MatrixLayout layout;  // Of matrices, once loaded.
  bool repacked = false;
  WeightPlacement placement;
  std::vector<Buffer> buffers;       // One a group of slabs (a layer)
  std::vector<std::byte*> resident;  // By slab; null: on disk
  std::optional<WeightStream> stream;

  std::span<std::byte> slab(uint32_t index) const {
    return {resident[index], table.slabs[index].bytes};
  }
  std::vector<uint32_t> slabs(bool on_disk) const {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < table.slabs.size(); ++i) {
      if (placement.on_disk[i] == on_disk) found.push_back(i);
    }
    return found;
  }

  Status allocate(Device& device, const WeightStoreOptions& options);
  Status start_stream(Device& device, const WeightStoreOptions& options, File file,
                      std::vector<StreamedSlab> slabs);
  Status acquire(uint32_t group);
  void release(uint32_t group) {
    if (stream.has_value()) stream->release(group);
  }
};

namespace {

// Threads that read, verify or fill slabs: more than one core keeps a disk's queue full, and the
// kernel's page zeroing, the copy and the checksum of 8 MiB overlap with other slabs' reads.
constexpr int kLoaderThreads = 4;

// Runs body(slab) for every slab of `which` on several threads; the first error stops the rest.
Status for_each_slab(const ModelFileTable& table, const std::vector<uint32_t>& which,
                     const LoadProgress& progress, const std::function<Status(uint32_t)>& body) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status first_error;
  uint64_t done = 0;
  uint64_t total = 0;
  for (uint32_t slab : which) total += table.slabs[slab].bytes;
  const auto work = [&] {
    for (size_t i = next++; i < which.size(); i = next++) {
      const uint32_t slab = which[i];
      Status status = body(slab);
      const std::lock_guard lock(mutex);
      if (!status.ok()) {
        if (first_error.ok()) first_error = status;
        next = which.size();
        return;
      }
      done += table.slabs[slab].bytes;
      if (progress) progress(done, total);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kLoaderThreads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

// The tensor that a slab belongs to; null for slabs of vectors.
const TensorInfo* matrix_tensor_of(const ModelFileTable& table, uint32_t slab) {
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind != WeightKind::kVector && slab >= tensor.first_slab &&
        slab < tensor.first_slab + tensor.slab_count) {
      return &tensor;
    }
  }
  return nullptr;
}

void repack_slab(const TensorInfo& tensor, uint32_t slab, MatrixLayout layout,
                 std::span<const std::byte> from, std::span<std::byte> to) {
  const int64_t rows = tensor.rows_in_slab(slab - tensor.first_slab);
  std::vector<std::byte> plain(static_cast<size_t>(rows * tensor.spec.columns) *
                               dtype_bytes(tensor.format));
  unpack_rows(tensor.layout, tensor.format, from.data(), rows, tensor.spec.columns, plain.data());
  pack_rows(layout, tensor.format, tensor.format, plain.data(), rows, tensor.spec.columns,
            to.data());
}

// A second descriptor that bypasses the page cache, where the file system can.
File open_direct(const ModelFile& file) {
  Result<File> direct = File::open(file.path(), O_RDONLY | O_DIRECT);
  return direct.ok() ? std::move(direct).value() : File();
}

// Reads a slab past the page cache; what goes wrong there is tried once more the ordinary way,
// whose errors name file, slab and bytes.
Status read_verified(const ModelFile& file, const File& direct, uint32_t slab,
                     std::span<std::byte> target) {
  const ModelFileTable& table = file.table();
  if (direct.fd() >= 0 && direct.read(table.slabs[slab].offset, target).ok() &&
      slab_checksum(target, table.slab_seed(slab)) == table.slabs[slab].checksum) {
    return {};
  }
  return file.read_slab(slab, target);
}

// Slabs on disk are used as they are; those in memory can be repacked.
template <class State>
Status check_layouts(const State& state, const ModelFile& file) {
  for (uint32_t slab : state.slabs(true)) {
    const TensorInfo* tensor = matrix_tensor_of(state.table, slab);
    if (tensor == nullptr || tensor->layout == MatrixLayout::kRows) continue;
    if (tensor->layout == state.layout) continue;
    return invalid_argument(
        file.path() + " is packed as " + std::string(layout_name(tensor->layout)) +
        " for another kind of machine; this one streams " + std::string(layout_name(state.layout)) +
        " from disk, so convert the checkpoint again here");
  }
  return {};
}

// What a stream has to know of each slab on disk, where the model file has it.
template <class State>
std::vector<StreamedSlab> streamed_slabs(const State& state) {
  std::vector<StreamedSlab> streamed;
  for (uint32_t i : state.slabs(true)) {
    const SlabInfo& slab = state.table.slabs[i];
    streamed.push_back(
        {i, state.groups[i], slab.offset, slab.bytes, slab.checksum, state.table.slab_seed(i)});
  }
  return streamed;
}

}  // namespace

// Decides what lives where and takes the memory: one allocation a group of slabs (huge pages), and
// the ring.
Status WeightStore::State::allocate(Device& device, const WeightStoreOptions& options) {
  placement = options.placement.on_disk.empty() ? place_weights(table, 0) : options.placement;
  SPILLWAY_CHECK(placement.on_disk.size() == table.slabs.size());
  SPILLWAY_CHECK(placement.disk_bytes == 0 || options.transfers != nullptr);
  resident.resize(table.slabs.size());
  for (size_t first = 0, last = 0; first < table.slabs.size(); first = last) {
    uint64_t bytes = 0;
    for (; last < table.slabs.size() && groups[last] == groups[first]; ++last) {
      if (!placement.on_disk[last]) bytes += table.slabs[last].bytes;
    }
    SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, bytes));
    std::byte* data = buffer.data();
    for (size_t i = first; i < last; ++i) {
      if (placement.on_disk[i]) continue;
      resident[i] = data;
      views.place(static_cast<uint32_t>(i), data);
      data += table.slabs[i].bytes;
    }
    buffers.push_back(std::move(buffer));
  }
  return {};
}

Status WeightStore::State::start_stream(Device& device, const WeightStoreOptions& options,
                                        File file, std::vector<StreamedSlab> slabs) {
  if (slabs.empty()) return {};
  const uint64_t wanted =
      options.ring_bytes == 0 ? placement.ring_bytes_good() : options.ring_bytes;
  SPILLWAY_CHECK(wanted >= placement.ring_bytes_min());
  SPILLWAY_ASSIGN_OR_RETURN(Buffer ring,
                            device.allocate(Memory::kDevice, round_up(wanted, kFileAlignment)));
  stream.emplace(*options.transfers, std::move(file), std::move(slabs), std::move(ring),
                 options.prefetch);
  return {};
}

Status WeightStore::State::acquire(uint32_t group) {
  if (!stream.has_value()) return {};
  SPILLWAY_ASSIGN_OR_RETURN(const WeightStream::Range range, stream->acquire(group));
  for (size_t i = range.first; i < range.last; ++i) {
    views.place(stream->slabs()[i].slab, stream->data(i));
  }
  return {};
}

WeightStore::WeightStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
WeightStore::~WeightStore() = default;

Result<std::unique_ptr<WeightStore>> WeightStore::load(Device& device, const ModelFile& file,
                                                       const WeightStoreOptions& options) {
  const ModelFileTable& table = file.table();
  auto state = std::make_unique<State>(table, device.matrix_layout(table.format));
  SPILLWAY_RETURN_IF_ERROR(state->allocate(device, options));
  SPILLWAY_RETURN_IF_ERROR(check_layouts(*state, file));
  File direct = open_direct(file);
  std::atomic<bool> repacked{false};
  const auto load_slab = [&](uint32_t slab) -> Status {
    const TensorInfo* tensor = matrix_tensor_of(table, slab);
    if (tensor == nullptr || tensor->layout == MatrixLayout::kRows ||
        tensor->layout == state->layout) {
      return read_verified(file, direct, slab, state->slab(slab));
    }
    repacked = true;
    SPILLWAY_ASSIGN_OR_RETURN(const Buffer staging,
                              device.allocate(Memory::kPinned, table.slabs[slab].bytes));
    const std::span<std::byte> bytes(staging.data(), staging.bytes());
    SPILLWAY_RETURN_IF_ERROR(read_verified(file, direct, slab, bytes));
    repack_slab(*tensor, slab, state->layout, bytes, state->slab(slab));
    return {};
  };
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(table, state->slabs(false), options.progress, load_slab));
  state->repacked = repacked;
  if (direct.fd() < 0) {
    SPILLWAY_ASSIGN_OR_RETURN(direct, File::open(file.path(), O_RDONLY));
  }
  SPILLWAY_RETURN_IF_ERROR(
      state->start_stream(device, options, std::move(direct), streamed_slabs(*state)));
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

Result<std::unique_ptr<WeightStore>> WeightStore::dummy(Device& device, const ModelShape& shape,
                                                        DType format, uint64_t seed,
                                                        WeightStoreOptions options) {
  const MatrixLayout layout = device.matrix_layout(format);
  auto state = std::make_unique<State>(plan_model_file(shape, format, layout), layout);
  SPILLWAY_RETURN_IF_ERROR(state->allocate(device, options));
  const ModelFileTable& table = state->table;
  std::vector<StreamedSlab> streamed = streamed_slabs(*state);
  std::vector<size_t> streamed_index(table.slabs.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < streamed.size(); ++i) {
    streamed_index[streamed[i].slab] = i;
    streamed[i].offset = offset;
    offset += streamed[i].bytes;
  }
  const auto make_slab = [&](uint32_t slab) -> Status {
    if (!state->placement.on_disk[slab]) {
      fill_dummy_slab(table, slab, seed, state->slab(slab));
      return {};
    }
    AlignedBytes staging;
    const std::span<std::byte> bytes = staging.reserve(table.slabs[slab].bytes);
    fill_dummy_slab(table, slab, seed, bytes);
    StreamedSlab& target = streamed[streamed_index[slab]];
    target.checksum = slab_checksum(bytes, target.seed);
    return options.scratch.write(target.offset, bytes);
  };
  std::vector<uint32_t> all(table.slabs.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(table, all, options.progress, make_slab));
  File scratch = std::move(options.scratch);
  SPILLWAY_RETURN_IF_ERROR(
      state->start_stream(device, options, std::move(scratch), std::move(streamed)));
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

const ModelShape& WeightStore::shape() const {
  return state_->table.shape;
}
DType WeightStore::format() const {
  return state_->table.format;
}
bool WeightStore::repacked() const {
  return state_->repacked;
}
const WeightPlacement& WeightStore::placement() const {
  return state_->placement;
}

Result<const EmbeddingWeights*> WeightStore::acquire_embedding() {
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(0));
  return &state_->views.embedding;
}
void WeightStore::release_embedding() {
  state_->release(0);
}

Result<const LayerWeights*> WeightStore::acquire(int64_t layer) {
  SPILLWAY_CHECK(layer >= 0 && layer < state_->table.shape.layers);
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(1 + static_cast<uint32_t>(layer)));
  return &state_->views.layers[static_cast<size_t>(layer)];
}
void WeightStore::release(int64_t layer) {
  state_->release(1 + static_cast<uint32_t>(layer));
}

Result<const HeadWeights*> WeightStore::acquire_head() {
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(1 + static_cast<uint32_t>(state_->table.shape.layers)));
  return &state_->views.head;
}
void WeightStore::release_head() {
  state_->release(1 + static_cast<uint32_t>(state_->table.shape.layers));
}

void WeightStore::restart() {
  if (state_->stream.has_value()) state_->stream->restart();
}

}  // namespace spillway
