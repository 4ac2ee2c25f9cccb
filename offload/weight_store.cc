#include "offload/weight_store.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/checked_math.h"
#include "offload/device_ring.h"
#include "offload/io/aligned_bytes.h"
#include "offload/io/checksum.h"
#include "offload/model_file/dummy_weights.h"
#include "offload/weight_stream.h"

namespace spillway {

struct WeightStore::State {
  State(Device& d, ModelFileTable t, MatrixLayout l)
      : device(d), table(std::move(t)), groups(weight_groups(table)), views(table, l), layout(l) {}

  Device& device;
  ModelFileTable table;
  const std::vector<uint32_t> groups;  // By slab
  WeightViews views;
  const MatrixLayout layout;  // Layout of loaded matrices
  bool repacked = false;
  LayerRange layers;
  std::shared_ptr<const SlabSource> source;  // Null: slabs lie in a packed or a scratch file
  WeightPlacement placement;
  std::vector<Buffer> buffers;          // One per group of slabs (a layer) and tier
  std::vector<SlabLocation> locations;  // By slab; null: on disk
  std::optional<WeightStream> stream;   // From disk
  Buffer ring_memory;                   // Memory of `ring`
  std::optional<DeviceRing> ring;       // Into a discrete device's memory

  // Ring pieces of the group in use; and the last group read from disk, whose host memory is needed
  // until it has been copied.
  size_t pieces = 0;
  struct Copied {
    uint32_t group;
    Event event;
  };
  std::optional<Copied> copied;

  // The next group to be streamed through the ring, and the numbers of its slabs already uploaded
  // while another group is in use: those that live in host memory, then those read from disk.
  struct Ahead {
    uint32_t group = 0;
    size_t from_host = 0, from_disk = 0;
  } ahead;
  uint32_t in_use = 0;
  bool uploads_ahead = false;
  uint64_t h2d_bytes = 0;  // Of acquired groups

  // The slabs of the range of layers, on disk or not.
  std::vector<uint32_t> slabs(bool on_disk) const {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < table.slabs.size(); ++i) {
      if (has(i) && placement.on_disk(i) == on_disk) found.push_back(i);
    }
    return found;
  }
  bool has(uint32_t slab) const { return placement.tiers[slab] != Tier::kNone; }
  uint32_t head_group() const { return 1 + static_cast<uint32_t>(table.shape.layers); }

  Status allocate(const WeightStoreOptions& options);
  Status allocate_group(size_t first, size_t last, Tier tier);
  Status start_stream(const WeightStoreOptions& options, File file,
                      std::vector<StreamedSlab> slabs);
  Status acquire(uint32_t group);
  uint64_t passing_bytes(uint32_t group) const;
  bool upload_from_host(uint32_t group);
  bool upload_from_disk(uint32_t group, bool all);
  Status upload(uint32_t group, WeightStream::Range from_disk);
  void upload_ahead();
  void release(uint32_t group);
  void restart();
};

namespace {

// Checks the layout of slabs that are used without repacking.
template <class State>
Status check_layouts(const State& state, const ModelFile& file) {
  for (uint32_t slab : state.slabs(true)) {
    const TensorInfo* tensor = matrix_tensor_of(state.table, slab);
    if (tensor == nullptr || tensor->spec.kind != WeightKind::kMatrix) continue;
    if (tensor->layout == state.layout) continue;
    return invalid_argument(
        file.path() + " is packed as " + std::string(layout_name(tensor->layout)) +
        " for another kind of device or by an older version; this one streams " +
        std::string(layout_name(state.layout)) +
        " from disk, so convert the checkpoint again for it (spillway convert --device " +
        (state.device.discrete() ? "cuda)" : "cpu)"));
  }
  return {};
}

// The entries of a stream for the slabs on disk, with their places in the model file.
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

// Allocates memory for the slabs [first, last) of one group that live on `tier`.
Status WeightStore::State::allocate_group(size_t first, size_t last, Tier tier) {
  const bool own = tier == Tier::kDevice && device.discrete();
  uint64_t bytes = 0;
  for (size_t i = first; i < last; ++i) {
    if (placement.tiers[i] != tier) continue;
    locations[i] = {nullptr, slab_memory_bytes(table, static_cast<uint32_t>(i), layout), own};
    bytes += locations[i].bytes;
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      Buffer buffer,
      device.allocate(tier == Tier::kDevice ? Memory::kDevice : Memory::kPinned, bytes));
  std::byte* data = buffer.data();
  for (size_t i = first; i < last; ++i) {
    if (placement.tiers[i] != tier) continue;
    locations[i].memory = data;
    if (tier == Tier::kDevice) views.place(static_cast<uint32_t>(i), data);
    data += locations[i].bytes;
  }
  buffers.push_back(std::move(buffer));
  return {};
}

// Decides the placement and allocates the memory: one allocation per group of slabs (huge pages),
// and the rings.
Status WeightStore::State::allocate(const WeightStoreOptions& options) {
  if (options.positions_max > 0) limit_positions(options.positions_max, table.shape);
  layers = options.layers.value_or(all_layers(table.shape));
  placement =
      options.placement.tiers.empty() ? place_weights(table, 0, 0, layers) : options.placement;
  SPILLWAY_CHECK(placement.tiers.size() == table.slabs.size());
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    SPILLWAY_CHECK(has(i) == has_group(layers, table.shape, groups[i]));
  }
  SPILLWAY_CHECK(placement.disk_bytes == 0 || options.transfers != nullptr);
  SPILLWAY_CHECK(placement.host_bytes == 0 || device.discrete());
  locations.resize(table.slabs.size());
  for (size_t first = 0, last = 0; first < table.slabs.size(); first = last) {
    while (last < table.slabs.size() && groups[last] == groups[first]) ++last;
    SPILLWAY_RETURN_IF_ERROR(allocate_group(first, last, Tier::kDevice));
    SPILLWAY_RETURN_IF_ERROR(allocate_group(first, last, Tier::kHost));
  }
  if (!device.discrete() || placement.to_device.total == 0) return {};
  const uint64_t wanted =
      options.device_ring_bytes == 0 ? placement.to_device.ring_good() : options.device_ring_bytes;
  SPILLWAY_CHECK(wanted >= placement.to_device.ring_min());
  uploads_ahead = options.prefetch;
  SPILLWAY_ASSIGN_OR_RETURN(ring_memory,
                            device.allocate(Memory::kDevice, round_up(wanted, kFileAlignment)));
  return {};
}

Status WeightStore::State::start_stream(const WeightStoreOptions& options, File file,
                                        std::vector<StreamedSlab> slabs) {
  if (slabs.empty()) return {};
  const uint64_t wanted =
      options.ring_bytes == 0 ? placement.ring_bytes_good() : options.ring_bytes;
  SPILLWAY_CHECK(wanted >= placement.ring_bytes_min());
  SPILLWAY_ASSIGN_OR_RETURN(Buffer memory,
                            device.allocate(Memory::kPinned, round_up(wanted, kFileAlignment)));
  MakeSlab make;
  if (source) {
    make = [from = source.get()](uint32_t slab, std::span<std::byte> bytes, bool compare) {
      return from->arrange(slab, bytes, compare);
    };
  }
  stream.emplace(*options.transfers, std::move(file), std::move(slabs), std::move(memory),
                 options.prefetch, options.verify, std::move(make));
  return {};
}

Status WeightStore::State::acquire(uint32_t group) {
  SPILLWAY_CHECK(has_group(layers, table.shape, group));
  in_use = group;
  if (copied) {
    const Copied last = *std::exchange(copied, std::nullopt);
    SPILLWAY_RETURN_IF_ERROR(last.event.wait());
    stream->release(last.group);
  }
  WeightStream::Range from_disk;
  if (stream) {
    SPILLWAY_ASSIGN_OR_RETURN(from_disk, stream->acquire(group));
  }
  if (ring_memory.bytes() > 0) {
    return upload(group, from_disk);
  }
  for (size_t i = from_disk.first; i < from_disk.last; ++i) {
    views.place(stream->slabs()[i].slab, stream->data(i));
  }
  return {};
}

// Bytes of a group that are uploaded to the device in every sweep.
uint64_t WeightStore::State::passing_bytes(uint32_t group) const {
  const auto [first, last] = std::equal_range(groups.begin(), groups.end(), group);
  uint64_t bytes = 0;
  for (auto at = first; at != last; ++at) {
    const auto slab = static_cast<size_t>(at - groups.begin());
    if (placement.on_disk(slab)) bytes += table.slabs[slab].bytes;
    if (placement.tiers[slab] == Tier::kHost) bytes += locations[slab].bytes;
  }
  return bytes;
}

// Uploads the group's slabs that live in host memory, in order, from the first that is not in the
// ring yet. False: the ring is full.
bool WeightStore::State::upload_from_host(uint32_t group) {
  const auto [first, last] = std::equal_range(groups.begin(), groups.end(), group);
  size_t count = 0;
  for (auto at = first; at != last; ++at) {
    const auto slab = static_cast<uint32_t>(at - groups.begin());
    if (placement.tiers[slab] != Tier::kHost || count++ < ahead.from_host) continue;
    const uint64_t bytes = locations[slab].bytes;
    std::byte* memory = ring->upload(locations[slab].memory, bytes, bytes);
    if (memory == nullptr) return false;
    views.place(slab, memory);
    ++ahead.from_host;
  }
  return true;
}

// Likewise uploads the slabs read from disk: `all` of an acquired group, else those that have
// arrived in host memory.
bool WeightStore::State::upload_from_disk(uint32_t group, bool all) {
  if (!stream) return true;
  const auto [first, last] = stream->range_of(group);
  for (size_t i = first + ahead.from_disk; i < last; ++i, ++ahead.from_disk) {
    if (!all && !stream->there(i)) return true;
    const StreamedSlab& slab = stream->slabs()[i];
    std::byte* memory = ring->upload(stream->data(i), slab.bytes, slab.bytes);
    if (memory == nullptr) return false;
    views.place(slab.slab, memory);
  }
  return true;
}

// Uploads an acquired group to the device, except for slabs uploaded ahead.
Status WeightStore::State::upload(uint32_t group, WeightStream::Range from_disk) {
  SPILLWAY_CHECK(ring.has_value() && pieces == 0);
  if (const uint64_t bytes = passing_bytes(group); bytes > 0) {
    SPILLWAY_CHECK(ahead.from_host + ahead.from_disk == 0 || ahead.group == group);
    // The ring holds any group, and the other groups are finished.
    SPILLWAY_CHECK(upload_from_host(group) && upload_from_disk(group, true));
    pieces = ahead.from_host + ahead.from_disk;
    ahead = {};
    h2d_bytes += bytes;
  }
  ring->arrive();
  if (from_disk.first != from_disk.last) copied = Copied{group, ring->copied()};
  upload_ahead();
  return {};
}

// While the group is in use, and its user may be waiting for CPU attention or for the KV cache from
// disk, the link uploads the next group that needs it.
void WeightStore::State::upload_ahead() {
  if (!uploads_ahead || !ring) return;
  if (copied && copied->event.done() && copied->event.wait().ok()) {
    // Freed early so that the disk continues to read.
    stream->release(std::exchange(copied, std::nullopt)->group);
  }
  const uint32_t count = groups.back() + 1;
  for (uint32_t i = 1; i < count; ++i) {
    const uint32_t next = (in_use + i) % count;
    if (passing_bytes(next) == 0) continue;
    ahead.group = next;
    if (upload_from_host(next)) (void)upload_from_disk(next, false);
    return;
  }
}

void WeightStore::State::release(uint32_t group) {
  if (ring) {
    ring->finish(std::exchange(pieces, 0));
    return;  // The stream's memory is freed after the copy.
  }
  if (stream) stream->release(group);
}

void WeightStore::State::restart() {
  if (ring) ring->clear();
  pieces = 0;
  ahead = {};
  copied.reset();
  if (stream) stream->restart();
}

WeightStore::WeightStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
WeightStore::~WeightStore() = default;

Result<std::unique_ptr<WeightStore>> WeightStore::load(Device& device, const ModelFile& file,
                                                       const WeightStoreOptions& options) {
  const ModelFileTable& table = file.table();
  auto state = std::make_unique<State>(device, table, device.matrix_layout(table.format));
  SPILLWAY_RETURN_IF_ERROR(state->allocate(options));
  SPILLWAY_RETURN_IF_ERROR(check_layouts(*state, file));
  File direct = open_direct(file);
  SPILLWAY_RETURN_IF_ERROR(load_slabs(device, file, direct, state->slabs(false), state->locations,
                                      state->layout, options.progress, &state->repacked));
  if (direct.fd() < 0) {
    SPILLWAY_ASSIGN_OR_RETURN(direct, File::open(file.path(), O_RDONLY));
  }
  SPILLWAY_RETURN_IF_ERROR(state->start_stream(options, std::move(direct), streamed_slabs(*state)));
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

Result<std::unique_ptr<WeightStore>> WeightStore::load(
    Device& device, const std::shared_ptr<const SlabSource>& source,
    const WeightStoreOptions& options) {
  const ModelFileTable& table = source->table();
  auto state = std::make_unique<State>(device, table, device.matrix_layout(table.format));
  state->source = source;
  SPILLWAY_RETURN_IF_ERROR(state->allocate(options));
  const auto load_slab = [&](uint32_t slab, SlabWriter& writer) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                              writer.begin(state->locations[slab]));
    SPILLWAY_RETURN_IF_ERROR(source->load(slab, memory.first(table.slabs[slab].bytes)));
    return writer.finish();
  };
  SPILLWAY_RETURN_IF_ERROR(
      for_each_slab(device, table, state->slabs(false), options.progress, load_slab));
  if (source->verifies()) {
    const auto verify_slab = [&](uint32_t slab, SlabWriter&) -> Status {
      AlignedBytes memory;
      return source->load(slab, memory.reserve(table.slabs[slab].bytes));
    };
    SPILLWAY_RETURN_IF_ERROR(
        for_each_slab(device, table, state->slabs(true), options.progress, verify_slab));
  }
  std::vector<StreamedSlab> streamed = streamed_slabs(*state);
  for (StreamedSlab& slab : streamed) {
    for (const SlabRead& read : source->reads(slab.slab)) {
      slab.reads.push_back({read.file, read.offset, read.bytes, read.at});
    }
  }
  SPILLWAY_RETURN_IF_ERROR(state->start_stream(options, File(), std::move(streamed)));
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

Result<std::unique_ptr<WeightStore>> WeightStore::dummy(Device& device, const ModelShape& shape,
                                                        Format format, uint64_t seed,
                                                        WeightStoreOptions options) {
  const MatrixLayout layout = device.matrix_layout(format);
  auto state = std::make_unique<State>(device, plan_model_file(shape, format, layout), layout);
  SPILLWAY_RETURN_IF_ERROR(state->allocate(options));
  const ModelFileTable& table = state->table;
  std::vector<StreamedSlab> streamed = streamed_slabs(*state);
  std::vector<size_t> streamed_index(table.slabs.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < streamed.size(); ++i) {
    streamed_index[streamed[i].slab] = i;
    streamed[i].offset = offset;
    offset += streamed[i].bytes;
  }
  const auto make_slab = [&](uint32_t slab, SlabWriter& writer) -> Status {
    if (!state->placement.on_disk(slab)) {
      SPILLWAY_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                                writer.begin(state->locations[slab]));
      fill_dummy_slab(table, slab, seed, memory);
      return writer.finish();
    }
    AlignedBytes staging;
    const std::span<std::byte> bytes = staging.reserve(table.slabs[slab].bytes);
    fill_dummy_slab(table, slab, seed, bytes);
    StreamedSlab& target = streamed[streamed_index[slab]];
    target.checksum = seeded_checksum(bytes, target.seed);
    return options.scratch.write(target.offset, bytes);
  };
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < table.slabs.size(); ++i) {
    if (state->has(i)) all.push_back(i);
  }
  SPILLWAY_RETURN_IF_ERROR(for_each_slab(device, table, all, options.progress, make_slab));
  File scratch = std::move(options.scratch);
  SPILLWAY_RETURN_IF_ERROR(state->start_stream(options, std::move(scratch), std::move(streamed)));
  return std::unique_ptr<WeightStore>(new WeightStore(std::move(state)));
}

void WeightStore::attach(Stream& compute) {
  const Buffer& memory = state_->ring_memory;
  if (memory.bytes() == 0) return;
  state_->ring.emplace(state_->device, compute, std::span(memory.data(), memory.bytes()),
                       "weights");
}

void WeightStore::detach() {
  State& state = *state_;
  state.ring.reset();
  state.pieces = 0;
  state.ahead = {};
  if (state.copied) state.stream->release(std::exchange(state.copied, std::nullopt)->group);
}

const ModelShape& WeightStore::shape() const {
  return state_->table.shape;
}
const LayerRange& WeightStore::layers() const {
  return state_->layers;
}
Format WeightStore::format() const {
  return state_->table.format;
}
bool WeightStore::repacked() const {
  return state_->repacked;
}
uint64_t WeightStore::h2d_bytes() const {
  return state_->h2d_bytes;
}
void WeightStore::upload_ahead() {
  state_->upload_ahead();
}
const WeightPlacement& WeightStore::placement() const {
  return state_->placement;
}

Result<const LayerWeights*> WeightStore::acquire_embedding() {
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(0));
  return &state_->views.embedding;
}
void WeightStore::release_embedding() {
  state_->release(0);
}

Result<const LayerWeights*> WeightStore::acquire(int64_t layer) {
  SPILLWAY_CHECK(state_->layers.contains(layer));
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(1 + static_cast<uint32_t>(layer)));
  return &state_->views.layers[static_cast<size_t>(layer)];
}
void WeightStore::release(int64_t layer) {
  state_->release(1 + static_cast<uint32_t>(layer));
}

Result<const LayerWeights*> WeightStore::acquire_head() {
  SPILLWAY_RETURN_IF_ERROR(state_->acquire(state_->head_group()));
  return &state_->views.head;
}
void WeightStore::release_head() {
  state_->release(state_->head_group());
}

void WeightStore::restart() {
  state_->restart();
}

}  // namespace spillway
