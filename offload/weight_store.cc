#include "offload/weight_store.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/dummy_weights.h"

namespace spillway {

struct WeightStore::State {
  ModelFileTable table;
  MatrixLayout layout = MatrixLayout::kRows;  // Of matrices, once loaded.
  bool repacked = false;
  std::vector<Buffer> buffers;                        // One a group of slabs (a layer)
  std::vector<std::byte*> slab_data;                  // By slab
  std::vector<std::vector<WeightSlab>> tensor_slabs;  // By tensor
  EmbeddingWeights embedding;
  HeadWeights head;
  std::vector<LayerWeights> layers;

  std::span<std::byte> slab(uint32_t index) const {
    return {slab_data[index], table.slabs[index].bytes};
  }
};

namespace {

// Threads that read, verify or fill slabs: more than one core keeps a disk's queue full, and the
// kernel's page zeroing, the copy and the checksum of 8 MiB overlap with other slabs' reads.
constexpr int kLoaderThreads = 4;

// Runs body(slab) for every slab on several threads; the first error stops the rest.
Status for_each_slab(const ModelFileTable& table, const LoadProgress& progress,
                     const std::function<Status(uint32_t)>& body) {
  std::atomic<uint32_t> next{0};
  std::mutex mutex;
  Status first_error;
  uint64_t done = 0;
  const uint64_t total = table.weight_bytes();
  const auto work = [&] {
    for (uint32_t slab = next++; slab < table.slabs.size(); slab = next++) {
      Status status = body(slab);
      const std::lock_guard lock(mutex);
      if (!status.ok()) {
        if (first_error.ok()) first_error = status;
        next = static_cast<uint32_t>(table.slabs.size());
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

// One allocation a group of neighbouring slabs of one layer: huge pages, and whole layers to give
// back later.
Status allocate_slabs(Device& device, const ModelFileTable& table, std::vector<Buffer>* buffers,
                      std::vector<std::byte*>* slab_data) {
  slab_data->resize(table.slabs.size());
  for (size_t first = 0; first < table.slabs.size();) {
    size_t last = first;
    uint64_t bytes = 0;
    for (; last < table.slabs.size() && table.slabs[last].layer == table.slabs[first].layer;
         ++last) {
      bytes += table.slabs[last].bytes;
    }
    SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, bytes));
    std::byte* data = buffer.data();
    for (size_t i = first; i < last; ++i) {
      (*slab_data)[i] = data;
      data += table.slabs[i].bytes;
    }
    buffers->push_back(std::move(buffer));
    first = last;
  }
  return {};
}

WeightMatrix matrix_of(const TensorInfo& tensor, MatrixLayout layout,
                       std::span<const WeightSlab> slabs) {
  return {slabs, tensor.format, layout, tensor.spec.rows, tensor.spec.columns, tensor.slab_rows};
}

// Where a role's view goes. Exactly one of the two is set.
struct Target {
  WeightMatrix* matrix = nullptr;
  const float** vector = nullptr;
};

Target target_of(WeightRole role, LayerWeights* layer, EmbeddingWeights* embedding,
                 HeadWeights* head) {
  switch (role) {
    case WeightRole::kTokenEmbedding:
      return {&embedding->tokens};
    case WeightRole::kPositionEmbedding:
      return {&embedding->positions};
    case WeightRole::kProjectIn:
      return {&embedding->project_in};
    case WeightRole::kAttentionNormWeight:
      return {nullptr, &layer->attention_norm_weight};
    case WeightRole::kAttentionNormBias:
      return {nullptr, &layer->attention_norm_bias};
    case WeightRole::kQkvWeight:
      return {&layer->qkv};
    case WeightRole::kQkvBias:
      return {nullptr, &layer->qkv_bias};
    case WeightRole::kAttentionOutWeight:
      return {&layer->attention_out};
    case WeightRole::kAttentionOutBias:
      return {nullptr, &layer->attention_out_bias};
    case WeightRole::kMlpNormWeight:
      return {nullptr, &layer->mlp_norm_weight};
    case WeightRole::kMlpNormBias:
      return {nullptr, &layer->mlp_norm_bias};
    case WeightRole::kMlpUpWeight:
      return {&layer->mlp_up};
    case WeightRole::kMlpUpBias:
      return {nullptr, &layer->mlp_up_bias};
    case WeightRole::kMlpDownWeight:
      return {&layer->mlp_down};
    case WeightRole::kMlpDownBias:
      return {nullptr, &layer->mlp_down_bias};
    case WeightRole::kFinalNormWeight:
      return {nullptr, &head->norm_weight};
    case WeightRole::kFinalNormBias:
      return {nullptr, &head->norm_bias};
    case WeightRole::kProjectOut:
      return {&head->project_out};
    case WeightRole::kHead:
      return {&head->head};
  }
  SPILLWAY_CHECK(false);
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

}  // namespace

WeightStore::WeightStore(std::unique_ptr<State> state) : state_(std::move(state)) {
  State& s = *state_;
  s.layers.resize(static_cast<size_t>(s.table.shape.layers));
  s.tensor_slabs.resize(s.table.tensors.size());
  for (size_t i = 0; i < s.table.tensors.size(); ++i) {
    const TensorInfo& tensor = s.table.tensors[i];
    LayerWeights* layer =
        tensor.spec.layer < 0 ? nullptr : &s.layers[static_cast<size_t>(tensor.spec.layer)];
    const Target target = target_of(tensor.spec.role, layer, &s.embedding, &s.head);
    if (target.vector != nullptr) {
      *target.vector =
          reinterpret_cast<const float*>(s.slab_data[tensor.first_slab] + tensor.offset_in_slab);
      continue;
    }
    for (uint32_t slab = 0; slab < tensor.slab_count; ++slab) {
      s.tensor_slabs[i].push_back(
          {s.slab_data[tensor.first_slab + slab], tensor.rows_in_slab(slab)});
    }
    const bool is_matrix = tensor.spec.kind == WeightKind::kMatrix;
    *target.matrix =
        matrix_of(tensor, is_matrix ? s.layout : MatrixLayout::kRows, s.tensor_slabs[i]);
  }
}

WeightStore::~WeightStore() = default;

Result<std::unique_ptr<WeightStore>> WeightStore::load(Device& device, const ModelFile& file,
                                                       const LoadProgress& progress) {
  auto state = std::make_unique<State>();
  state->table = file.table();
  state->layout = device.matrix_layout(state->table.format);
  SPILLWAY_RETURN_IF_ERROR(
      allocate_slabs(device, state->table, &state->buffers, &state->slab_data));
  const File direct = open_direct(file);
  std::atomic<bool> repacked{false};
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(state->table, progress, [&](uint32_t slab) -> Status {
    const TensorInfo* tensor = matrix_tensor_of(state->table, slab);
    if (tensor == nullptr || tensor->layout == MatrixLayout::kRows ||
        tensor->layout == state->layout) {
      return read_verified(file, direct, slab, state->slab(slab));
    }
    repacked = true;
    SPILLWAY_ASSIGN_OR_RETURN(const Buffer staging,
                              device.allocate(Memory::kPinned, state->table.slabs[slab].bytes));
    const std::span<std::byte> bytes(staging.data(), staging.bytes());
    SPILLWAY_RETURN_IF_ERROR(read_verified(file, direct, slab, bytes));
    repack_slab(*tensor, slab, state->layout, bytes, state->slab(slab));
    return {};
  }));
  state->repacked = repacked;
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

Result<std::unique_ptr<WeightStore>> WeightStore::dummy(Device& device, const ModelShape& shape,
                                                        DType format, uint64_t seed,
                                                        const LoadProgress& progress) {
  auto state = std::make_unique<State>();
  state->layout = device.matrix_layout(format);
  state->table = plan_model_file(shape, format, state->layout);
  SPILLWAY_RETURN_IF_ERROR(
      allocate_slabs(device, state->table, &state->buffers, &state->slab_data));
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(state->table, progress, [&](uint32_t slab) -> Status {
    fill_dummy_slab(state->table, slab, seed, state->slab(slab));
    return {};
  }));
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
uint64_t WeightStore::resident_bytes() const {
  return state_->table.weight_bytes();
}
const EmbeddingWeights& WeightStore::embedding() const {
  return state_->embedding;
}
const HeadWeights& WeightStore::head() const {
  return state_->head;
}

Result<const LayerWeights*> WeightStore::acquire(int64_t layer) {
  SPILLWAY_CHECK(layer >= 0 && layer < state_->table.shape.layers);
  return &state_->layers[static_cast<size_t>(layer)];
}

void WeightStore::release(int64_t) {}

}  // namespace spillway
