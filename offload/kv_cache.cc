#include "offload/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

constexpr int64_t kGrowthBlocks = 4;  // With which a sequence grows, where there is room

// Addresses that nobody reads or writes.
Result<Buffer> address_space(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return io_error("reserve addresses", errno);
  return Buffer(static_cast<std::byte*>(at), bytes,
                [bytes](std::byte* data) { ::munmap(data, bytes); });
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::open(Device& device, const KvCacheOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, options.memory_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(Buffer host, device.allocate(Memory::kPinned, options.host_bytes));
  return std::unique_ptr<KvCache>(new KvCache(std::move(buffer), std::move(host), options));
}

Result<std::unique_ptr<KvCache>> KvCache::open_books(const KvCacheOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, address_space(options.memory_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(Buffer host, address_space(options.host_bytes));
  return std::unique_ptr<KvCache>(new KvCache(std::move(buffer), std::move(host), options));
}

void KvCache::prefault(Device& device) const {
  device.prefault(buffer_);
  device.prefault(host_buffer_);
}

KvCache::KvCache(Buffer buffer, Buffer host, const KvCacheOptions& options)
    : buffer_(std::move(buffer)),
      host_buffer_(std::move(host)),
      options_(options),
      memory_(options.memory_bytes),
      host_(options.host_bytes),
      disk_(options.disk_bytes),
      aside_(options.aside_bytes) {
  SPILLWAY_CHECK(options.windowed.empty() ||
                 options.layers.end() <= static_cast<int64_t>(options.windowed.size()));
  for (int64_t layer = options.layers.first; layer < options.layers.end(); ++layer) {
    ++layers_[has_window(layer) ? 1 : 0];
  }
}

// The sequence with its kinds of layers, all of them on the device.
KvSequence KvCache::unplaced(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const {
  KvSequence sequence;
  sequence.rows = rows;
  sequence.layers = options_.layers;
  sequence.chunked_prompt = chunks.prompt;
  for (size_t i = 0; i < sequence.kinds.size(); ++i) {
    const int64_t window = i == 0 ? 0 : options_.window;
    static_cast<KvLayer&>(sequence.kinds[i]) = kv_layer(layout(), window, rows, budget, chunks);
    sequence.kinds[i].window = window;
    sequence.kinds[i].layers = layers_[i];
  }
  return sequence;
}

uint64_t KvCache::sequence_bytes(int64_t rows, const KvBudget& budget,
                                 const KvChunks& chunks) const {
  return unplaced(rows, budget, chunks).memory_bytes();
}

uint64_t KvCache::staged_layer_bytes(int64_t rows, const KvBudget& budget,
                                     const KvChunks& chunks) const {
  uint64_t largest = 0;
  for (const KvSequence::Kind& kind : unplaced(rows, budget, chunks).kinds) {
    if (kind.layers > 0) largest = std::max(largest, kind.staged_bytes());
  }
  return largest;
}

namespace {

// Calls try_count(n) for n in [0, most], nearest to `wanted` first, until it returns true. `near`:
// only for those at a distance of an eighth at most.
template <class Try>
bool nearest_first(int64_t wanted, int64_t most, bool near, const Try& try_count) {
  for (int64_t distance = 0; distance <= (near ? most / 8 : most); ++distance) {
    if (wanted + distance <= most && try_count(wanted + distance)) return true;
    if (distance > 0 && wanted >= distance && try_count(wanted - distance)) return true;
  }
  return false;
}

// Number of `layers` layers of `bytes` together to give to a tier so that it holds its share of
// `all`.
int64_t layers_due(double share, double all, uint64_t reserved, uint64_t bytes, int64_t layers) {
  if (layers == 0) return 0;
  const double due = share * all - static_cast<double>(reserved);
  const double each = static_cast<double>(bytes) / static_cast<double>(layers);
  return std::clamp(std::llround(due / each), 0LL, static_cast<long long>(layers));
}

// Splits `count` of `a + b` things, as nearly as possible in proportion.
std::array<int64_t, 2> in_proportion(int64_t count, int64_t a, int64_t b) {
  const int64_t of_b = a + b == 0 ? 0 : count * b / (a + b);
  return {count - of_b, of_b};
}

double part(uint64_t bytes, uint64_t all) {
  return static_cast<double>(bytes) / static_cast<double>(all);
}

}  // namespace

// Looks for a number of layers on disk and one in host memory that take() accepts, from those on
// that keep the tiers in proportion to their sizes. Where there are two kinds of layers, both are
// on a tier in the same proportion, to within a layer.
template <class Take>
bool KvCache::split(const TierBytes& reserved, const Take& take, KvSequence* sequence,
                    bool near) const {
  auto& kinds = sequence->kinds;
  const uint64_t all = sequence->memory_bytes();
  const auto try_host = [&](int64_t host_layers) {
    const auto host = in_proportion(host_layers, kinds[0].layers - kinds[0].on_disk,
                                    kinds[1].layers - kinds[1].on_disk);
    for (size_t i = 0; i < kinds.size(); ++i) kinds[i].on_host = host[i];
    return take();
  };
  // Splits the layers not on disk between device and host.
  const auto try_disk = [&](int64_t disk_layers) {
    const auto disk = in_proportion(disk_layers, kinds[0].layers, kinds[1].layers);
    for (size_t i = 0; i < kinds.size(); ++i) {
      kinds[i].on_disk = disk[i];
      kinds[i].on_host = 0;
    }
    const int64_t others = options_.layers.count - disk_layers;
    if (host_bytes() == 0) return take();
    const uint64_t rest = sequence->memory_bytes();
    const double after = static_cast<double>(reserved.device + reserved.host + rest);
    const int64_t wanted = layers_due(part(host_bytes(), host_bytes() + memory_bytes()), after,
                                      reserved.host, rest, others);
    return nearest_first(wanted, others, near, try_host);
  };
  // With this many layers on disk the tiers fill at the same pace; neighbouring numbers are tried
  // when one tier is full first.
  const double after = static_cast<double>(reserved.sum() + all);
  uint64_t on_disk = 0;
  for (const auto& kind : kinds) on_disk += static_cast<uint64_t>(kind.layers) * kind.disk_bytes;
  const int64_t wanted = layers_due(part(disk_bytes(), total_bytes()), after, reserved.disk,
                                    on_disk, options_.layers.count);
  return nearest_first(wanted, options_.layers.count, near, try_disk);
}

int64_t KvCache::sequences_at_once(int64_t rows, const KvBudget& budget,
                                   const KvChunks& chunks) const {
  KvSequence sequence = unplaced(rows, budget, chunks);
  TierBytes reserved;
  const auto take = [&] {
    const TierBytes after{reserved.device + sequence.memory_bytes(),
                          reserved.host + sequence.host_bytes(),
                          reserved.disk + sequence.disk_bytes()};
    const bool fits =
        after.device <= memory_bytes() && after.host <= host_bytes() && after.disk <= disk_bytes();
    if (fits) reserved = after;
    return fits;
  };
  int64_t count = 0;
  for (; split(reserved, take, &sequence); ++count) sequence = unplaced(rows, budget, chunks);
  return count;
}

Status KvCache::check_holds(int64_t rows, const KvBudget& budget, const KvChunks& chunks) const {
  const uint64_t layer = staged_layer_bytes(rows, budget, chunks);
  if (disk_bytes() > 0 && layer > options_.staging_bytes) {
    return invalid_argument("a layer of the sequence's KV cache takes " + format_bytes(layer) +
                            " on its way from disk, and there are " +
                            format_bytes(options_.staging_bytes) +
                            "; raise --host-memory or shorten it");
  }
  if (host_bytes() + disk_bytes() > 0 && options_.device_staging_bytes > 0 &&
      layer > options_.device_staging_bytes) {
    return invalid_argument("a layer of the sequence's KV cache takes " + format_bytes(layer) +
                            " on its way to the device, and there are " +
                            format_bytes(options_.device_staging_bytes) +
                            "; raise --device-memory or shorten it");
  }
  KvSequence sequence = unplaced(rows, budget, chunks);
  const auto fits = [&] {
    return sequence.memory_bytes() <= memory_bytes() && sequence.host_bytes() <= host_bytes() &&
           sequence.disk_bytes() <= disk_bytes();
  };
  if (split({}, fits, &sequence)) return {};
  return invalid_argument(
      "the sequence needs " + format_bytes(sequence_bytes(rows, budget, chunks)) +
      " of KV cache, and there are " + format_bytes(total_bytes()) +
      " in all; raise --host-memory" + (disk_bytes() > 0 ? " or --disk-memory" : "") +
      ", shorten it, or let kv_rule keep less of it");
}

// Puts the blocks of a beginning in front of the sequence's own.
void KvCache::share(KvSequence* sequence, std::span<const KvPages* const> beginning) const {
  for (const KvPages* pages : beginning) sequence->shared_blocks += pages->blocks;
  if (sequence->shared_blocks == 0) return;
  KvSequence::Kind& kind = sequence->kinds[0];
  SPILLWAY_CHECK(kind.in_blocks() && layers_[1] == 0);
  SPILLWAY_CHECK(sequence->shared_blocks * kKvBlockRows < sequence->chunked_prompt);
  kind.memory_bytes = sequence->own_bytes(layout(), sequence->rows);
  kind.disk_bytes = round_up(kind.memory_bytes, kIoAlignment);
}

RangeAllocator& KvCache::region(const KvSequence& sequence, const KvSequence::Place& place) {
  if (sequence.aside) return aside_;
  return place.tier == Tier::kDevice ? memory_ : place.tier == Tier::kHost ? host_ : disk_;
}

// Takes what the sequence's split says of every tier for its first `rows` positions, or nothing.
bool KvCache::take(KvSequence* sequence, int64_t rows) {
  const auto bytes = [&](bool disk, const auto& layers) {
    uint64_t sum = 0;
    for (const KvSequence::Kind& kind : sequence->kinds) {
      uint64_t each = disk ? kind.disk_bytes : kind.memory_bytes;
      if (kind.in_blocks()) each = sequence->own_bytes(layout(), rows);
      sum += static_cast<uint64_t>(layers(kind)) * each;
    }
    return sum;
  };
  const auto fits = [](uint64_t needed, const RangeAllocator& region) {
    return needed <= region.total() - region.reserved();
  };
  using Kind = KvSequence::Kind;
  const bool all_fit =
      fits(bytes(false, [](const Kind& k) { return k.layers - k.on_disk - k.on_host; }), memory_) &&
      fits(bytes(false, [](const Kind& k) { return k.on_host; }), host_) &&
      fits(bytes(true, [](const Kind& k) { return k.on_disk; }), disk_);
  if (!all_fit) return false;
  place(sequence);
  bool enough = true;
  try {
    for (KvSequence::Place& place : sequence->places) {
      enough = take(*sequence, kv_blocks(rows) - sequence->shared_blocks, &place);
      if (!enough) break;
    }
  } catch (...) {
    give_back(sequence);
    throw;
  }
  if (!enough) give_back(sequence);
  return enough;
}

// Takes runs for so many blocks of a layer, or the piece in which it lies, as long as there is
// room. False: not enough, and those taken stay.
bool KvCache::take(const KvSequence& sequence, int64_t blocks, KvSequence::Place* place) {
  const KvLayer& kind = sequence.kinds[place->window ? 1 : 0];
  const bool disk = place->tier == Tier::kDisk;
  RangeAllocator& from = region(sequence, *place);
  const uint64_t base = sequence.aside ? options_.disk_bytes : 0;
  if (!kind.in_blocks()) {
    const uint64_t bytes = disk ? kind.disk_bytes : kind.memory_bytes;
    const auto offset = from.reserve(bytes);
    if (offset) place->runs.push_back({base + *offset, bytes, 0});
    return offset.has_value();
  }
  return take_blocks(from, base, disk, blocks, &place->runs);
}

// Takes runs for so many blocks, as long as there is room.
bool KvCache::take_blocks(RangeAllocator& from, uint64_t base, bool disk, int64_t blocks,
                          std::vector<KvRun>* runs) const {
  const uint64_t block_bytes = layout().block_bytes();
  const auto bytes_of = [&](int64_t some) {
    const uint64_t bytes = static_cast<uint64_t>(some) * block_bytes;
    return disk ? round_up(bytes, kIoAlignment) : bytes;
  };
  // On disk a run but the last takes whole sectors, so that many take no more than one.
  const auto unit =
      static_cast<int64_t>(disk ? kIoAlignment / std::gcd<uint64_t>(kIoAlignment, block_bytes) : 1);
  const auto most =
      disk ? static_cast<int64_t>(kKvDiskRunBytesMax / block_bytes) / unit * unit : blocks;
  for (int64_t some = std::max(most, unit), left = blocks; left > 0;) {
    some = std::min(some, left);
    runs->reserve(runs->size() + 1);  // Noting what was taken cannot fail.
    const auto offset = from.reserve(bytes_of(some));
    if (!offset) {
      if (some <= unit) return false;
      some = (some / 2 + unit - 1) / unit * unit;
      continue;
    }
    runs->push_back({base + *offset, bytes_of(some), some});
    left -= some;
  }
  return true;
}

std::optional<KvPages> KvCache::reserve_pages(int64_t blocks, const KvBudget& scored,
                                              int64_t prompt) {
  SPILLWAY_CHECK(blocks > 0 && layers_[1] == 0);
  const auto layers = static_cast<size_t>(options_.layers.count);
  const KvStateLayout state{layout().heads, scored};
  const uint64_t state_bytes = scored.scored() ? state.chunked_bytes(prompt) : 0;
  const uint64_t bytes = static_cast<uint64_t>(blocks) * page_bytes() + layers * state_bytes;
  if (bytes > memory_.total() - memory_.reserved()) return {};
  KvPages pages;
  pages.blocks = blocks;
  pages.runs.resize(layers);
  pages.states.reserve(state_bytes > 0 ? layers : 0);
  bool enough = true;
  try {
    for (size_t layer = 0; layer < layers && enough; ++layer) {
      enough = take_blocks(memory_, 0, false, blocks, &pages.runs[layer]);
      if (!enough || state_bytes == 0) continue;
      const auto offset = memory_.reserve(state_bytes);
      if (offset) pages.states.push_back({*offset, state_bytes, 0});
      enough = offset.has_value();
    }
  } catch (...) {
    release(pages);
    throw;
  }
  if (!enough) {
    release(pages);
    return {};
  }
  pages.scores_at = state.bytes();
  pages.scores_stride = state.prompt_scores(prompt);
  return pages;
}

void KvCache::release(const KvPages& pages) {
  for (const std::vector<KvRun>& runs : pages.runs) {
    for (const KvRun& run : runs) memory_.release(run.offset, run.bytes);
  }
  for (const KvRun& state : pages.states) memory_.release(state.offset, state.bytes);
}

// Adds the addresses of a layer's blocks.
void KvCache::add_addresses(const KvPages& pages, size_t layer,
                            std::vector<std::byte*>* table) const {
  for (const KvRun& run : pages.runs[layer]) {
    for (int64_t block = 0; block < run.blocks; ++block) {
      table->push_back(buffer_.data() + run.offset +
                       static_cast<uint64_t>(block) * layout().block_bytes());
    }
  }
}

void KvCache::begin_behind(KvSequence* sequence, const KvPages& pages) const {
  SPILLWAY_CHECK(layers_[1] == 0 && !sequence->kinds[0].in_blocks());
  SPILLWAY_CHECK(sequence->chunked_prompt == 0);
  KvSequence::Beginning& beginning = sequence->beginning;
  beginning.layers.resize(pages.runs.size());
  for (size_t layer = 0; layer < pages.runs.size(); ++layer) {
    KvSequence::Beginning::Layer& one = beginning.layers[layer];
    add_addresses(pages, layer, &one.table);
    if (pages.states.empty()) continue;
    one.state = buffer_.data() + pages.states[layer].offset;
    one.scores = reinterpret_cast<const float*>(one.state + pages.scores_at);
  }
  beginning.scores_stride = pages.scores_stride;
  beginning.positions = pages.blocks * kKvBlockRows;
}

void KvCache::give_back(KvSequence* sequence) {
  const uint64_t base = sequence->aside ? options_.disk_bytes : 0;
  for (KvSequence::Place& place : sequence->places) {
    for (const KvRun& run : place.runs) {
      region(*sequence, place).release(run.offset - base, run.bytes);
    }
  }
  sequence->places.clear();
}

bool KvCache::grow(KvSequence& sequence, int64_t positions) {
  SPILLWAY_CHECK(positions <= sequence.rows && !sequence.aside);
  const int64_t has = sequence.positions();
  if (positions <= has) return true;
  std::vector<size_t> before;
  for (const KvSequence::Place& place : sequence.places) before.push_back(place.runs.size());
  const int64_t blocks = kv_blocks(has), wanted = kv_blocks(positions);
  // Blocks for some steps at once lie together.
  const int64_t more = std::min(kv_blocks(sequence.rows), std::max(wanted, blocks + kGrowthBlocks));
  for (const int64_t to : {more, wanted}) {
    bool enough = true;
    for (KvSequence::Place& place : sequence.places) {
      if (!sequence.kinds[place.window ? 1 : 0].in_blocks()) continue;
      enough = take(sequence, to - blocks, &place);
      if (!enough) break;
    }
    if (enough) {
      fill_tables(&sequence);
      return true;
    }
    for (size_t i = 0; i < before.size(); ++i) {
      KvSequence::Place& place = sequence.places[i];
      for (; place.runs.size() > before[i]; place.runs.pop_back()) {
        region(sequence, place).release(place.runs.back().offset, place.runs.back().bytes);
      }
    }
    if (to == wanted) break;
  }
  return false;
}

Result<std::unique_ptr<KvSequence>> KvCache::reserve_aside(const KvSequence& sequence,
                                                           int64_t positions) {
  auto copy = std::make_unique<KvSequence>();
  copy->rows = sequence.rows;
  copy->chunked_prompt = sequence.chunked_prompt;
  copy->layers = sequence.layers;
  copy->kinds = sequence.kinds;
  for (KvSequence::Kind& kind : copy->kinds) {  // Shared rows are copied, too.
    if (!kind.in_blocks()) continue;
    kind.memory_bytes = layout().sequence_bytes(copy->rows);
    kind.disk_bytes = round_up(kind.memory_bytes, kIoAlignment);
  }
  copy->aside = true;
  for (KvSequence::Kind& kind : copy->kinds) {
    kind.on_disk = kind.layers;
    kind.on_host = 0;
  }
  place(copy.get());
  for (KvSequence::Place& place : copy->places) {
    if (take(*copy, kv_blocks(positions), &place)) continue;
    give_back(copy.get());
    return Status(Code::kCapacity,
                  "no room to set a sequence of " + std::to_string(positions) +
                      " positions aside: " + format_bytes(aside_.total() - aside_.reserved()) +
                      " of " + format_bytes(aside_.total()) + " are free");
  }
  fill_tables(copy.get());
  return copy;
}

// Gives every layer its tier: of each kind those on a slower tier are spread evenly.
void KvCache::place(KvSequence* sequence) const {
  sequence->places.clear();
  std::array<int64_t, 2> seen{}, others_seen{};  // Of each kind, and of these not on disk
  for (int64_t layer = options_.layers.first; layer < options_.layers.end(); ++layer) {
    const size_t k = has_window(layer) ? 1 : 0;
    const KvSequence::Kind& kind = sequence->kinds[k];
    // Whether the i-th of `all` is one of `some` that are spread evenly.
    const auto picked = [](int64_t i, int64_t some, int64_t all) {
      return (i + 1) * some / all != i * some / all;
    };
    KvSequence::Place& place = sequence->places.emplace_back();
    place.window = k == 1;
    if (picked(seen[k]++, kind.on_disk, kind.layers)) {
      place.tier = Tier::kDisk;
    } else if (picked(others_seen[k]++, kind.on_host, kind.layers - kind.on_disk)) {
      place.tier = Tier::kHost;
    }
  }
}

void KvCache::fill_shared(KvSequence* sequence, std::span<const KvPages* const> beginning) const {
  for (const KvPages* pages : beginning) {
    for (size_t layer = 0; layer < sequence->places.size(); ++layer) {
      add_addresses(*pages, layer, &sequence->places[layer].table);
    }
  }
}

// Sets up the block tables, and the objects in the scratch file, of runs that are new.
void KvCache::fill_tables(KvSequence* sequence) const {
  for (KvSequence::Place& place : sequence->places) {
    const KvLayer& kind = sequence->kinds[place.window ? 1 : 0];
    if (place.tier == Tier::kDisk) {
      for (size_t run = place.spilled.size(); run < place.runs.size(); ++run) {
        SpilledObject& object = place.spilled.emplace_back();
        object.offset = place.runs[run].offset;
        object.head_bytes = kind.disk_state_bytes();
        object.piece_bytes = layout().block_bytes();
        object.owner = sequence;
      }
      continue;
    }
    const Buffer& buffer = place.tier == Tier::kHost ? host_buffer_ : buffer_;
    auto known = static_cast<int64_t>(place.table.size()) - sequence->shared_blocks;
    for (const KvRun& run : place.runs) {
      for (int64_t block = std::min(known, run.blocks); block < run.blocks; ++block) {
        place.table.push_back(buffer.data() + run.offset +
                              static_cast<uint64_t>(block) * layout().block_bytes());
      }
      known -= std::min(known, run.blocks);
    }
  }
}

Result<std::unique_ptr<KvSequence>> KvCache::reserve(int64_t rows, const KvBudget& budget,
                                                     const KvChunks& chunks, int64_t rows_now,
                                                     std::span<const KvPages* const> beginning,
                                                     const KvVacant& vacant) {
  SPILLWAY_CHECK(rows_now >= 0 && rows_now <= rows);
  SPILLWAY_CHECK(rows > 0 && (budget.full() || budget.recent + budget.kept < rows));
  auto sequence = std::make_unique<KvSequence>(unplaced(rows, budget, chunks));
  share(sequence.get(), beginning);
  const uint64_t all = sequence->memory_bytes();
  const TierBytes reserved{memory_.reserved() - vacant.bytes, host_.reserved(), disk_.reserved()};
  if (split(
          reserved, [&] { return take(sequence.get(), rows_now > 0 ? rows_now : rows); },
          sequence.get(), vacant.bytes > 0)) {
    fill_shared(sequence.get(), beginning);
    fill_tables(sequence.get());
    return sequence;
  }
  return Status(Code::kCapacity, "the KV cache has no room for " + std::to_string(rows) +
                                     " positions (" + format_bytes(all) + ") now; " +
                                     format_bytes(total_bytes() - reserved_bytes()) + " of " +
                                     format_bytes(total_bytes()) + " are free");
}

void KvCache::release(std::unique_ptr<KvSequence> sequence) {
  SPILLWAY_CHECK(sequence != nullptr);
  give_back(sequence.get());
}

std::byte* KvCache::run_at(const KvSequence& sequence, int64_t layer, size_t run) const {
  SPILLWAY_CHECK(options_.layers.contains(layer) && !sequence.on_disk(layer));
  const Buffer& buffer = sequence.tier(layer) == Tier::kHost ? host_buffer_ : buffer_;
  return buffer.data() + sequence.place(layer).runs[run].offset;
}

KvCache::Layer KvCache::layer(const KvSequence& sequence, int64_t layer) const {
  const std::vector<std::byte*>& table = sequence.place(layer).table;
  if (!table.empty()) return {nullptr, KvBlocks(table.data())};
  return layer_at(sequence, layer, run_at(sequence, layer, 0));
}

KvCache::Layer KvCache::layer_at(const KvSequence& sequence, int64_t layer, std::byte* memory) {
  const KvLayer& kind = sequence.kind(layer);
  const uint64_t state = sequence.on_disk(layer) ? kind.disk_state_bytes() : kind.state_bytes;
  return {state == 0 ? nullptr : memory, memory + state};
}

void KvCache::verify() const {
  memory_.verify();
  host_.verify();
  disk_.verify();
  aside_.verify();
}

}  // namespace spillway
