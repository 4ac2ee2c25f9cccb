#include "offload/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"

namespace spillway {

Result<std::unique_ptr<KvCache>> KvCache::open(Device& device, const KvCacheOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kDevice, options.memory_bytes));
  SPILLWAY_ASSIGN_OR_RETURN(Buffer host, device.allocate(Memory::kPinned, options.host_bytes));
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
      disk_(options.disk_bytes) {}

uint64_t KvCache::state_bytes(const KvBudget& budget, int64_t chunked_prompt) const {
  const KvStateLayout state{layout().heads, budget};
  return chunked_prompt > 0 ? state.chunked_bytes(chunked_prompt) : state.bytes();
}

uint64_t KvCache::row_bytes(int64_t rows, const KvBudget& budget, int64_t chunked_prompt) const {
  return layout().sequence_bytes(budget.chunked_slots(chunked_prompt, rows));
}

uint64_t KvCache::layer_bytes(int64_t rows, const KvBudget& budget, int64_t chunked_prompt) const {
  return state_bytes(budget, chunked_prompt) + row_bytes(rows, budget, chunked_prompt);
}

uint64_t KvCache::disk_layer_bytes(int64_t rows, const KvBudget& budget,
                                   int64_t chunked_prompt) const {
  return round_up(state_bytes(budget, chunked_prompt), kIoAlignment) +
         round_up(row_bytes(rows, budget, chunked_prompt), kIoAlignment);
}

uint64_t KvCache::sequence_bytes(int64_t rows, const KvBudget& budget,
                                 int64_t chunked_prompt) const {
  return layer_bytes(rows, budget, chunked_prompt) * static_cast<uint64_t>(options_.layers.count);
}

int64_t KvCache::sequences_at_once(int64_t rows, const KvBudget& budget,
                                   int64_t chunked_prompt) const {
  const uint64_t layer = layer_bytes(rows, budget, chunked_prompt);
  const uint64_t layers = memory_bytes() / layer + host_bytes() / layer +
                          disk_bytes() / disk_layer_bytes(rows, budget, chunked_prompt);
  return static_cast<int64_t>(layers / static_cast<uint64_t>(options_.layers.count));
}

Status KvCache::check_holds(int64_t rows, const KvBudget& budget, int64_t chunked_prompt) const {
  const uint64_t layer = disk_layer_bytes(rows, budget, chunked_prompt);
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
  if (sequences_at_once(rows, budget, chunked_prompt) >= 1) return {};
  return invalid_argument(
      "the sequence needs " + format_bytes(sequence_bytes(rows, budget, chunked_prompt)) +
      " of KV cache, and there are " + format_bytes(total_bytes()) +
      " in all; raise --host-memory" + (disk_bytes() > 0 ? " or --disk-memory" : "") +
      ", shorten it, or let kv_rule keep less of it");
}

bool KvCache::try_reserve(KvSequence* sequence, int64_t disk_layers, int64_t host_layers) {
  sequence->spilled.resize(static_cast<size_t>(disk_layers));
  sequence->host_layers = host_layers;
  const auto memory = memory_.reserve(sequence->memory_bytes());
  if (!memory) return false;
  const auto host = host_.reserve(sequence->host_bytes());
  if (!host) {
    memory_.release(*memory, sequence->memory_bytes());
    return false;
  }
  const auto disk = disk_.reserve(sequence->disk_bytes());
  if (!disk) {
    memory_.release(*memory, sequence->memory_bytes());
    host_.release(*host, sequence->host_bytes());
    return false;
  }
  sequence->memory_offset = *memory;
  sequence->host_offset = *host;
  sequence->disk_offset = *disk;
  for (size_t i = 0; i < sequence->spilled.size(); ++i) {
    sequence->spilled[i].offset = *disk + i * sequence->disk_layer_bytes;
    sequence->spilled[i].head_bytes = sequence->disk_state_bytes();
    sequence->spilled[i].piece_bytes = layout().block_bytes();
  }
  return true;
}

namespace {

// Calls try_count(n) for n in [0, most], nearest to `wanted` first, until it returns true.
template <class Try>
bool nearest_first(int64_t wanted, int64_t most, const Try& try_count) {
  for (int64_t distance = 0; distance <= most; ++distance) {
    if (wanted + distance <= most && try_count(wanted + distance)) return true;
    if (distance > 0 && wanted >= distance && try_count(wanted - distance)) return true;
  }
  return false;
}

// Number of layers of `layer_bytes` to give to a tier so that it holds its share of `all`.
int64_t layers_due(double share, double all, uint64_t reserved, uint64_t layer_bytes,
                   int64_t most) {
  const double due = share * all - static_cast<double>(reserved);
  return std::clamp(std::llround(due / static_cast<double>(layer_bytes)), 0LL,
                    static_cast<long long>(most));
}

}  // namespace

// Splits the layers not on disk between device and host, in proportion to the tiers' sizes.
bool KvCache::try_reserve(KvSequence* sequence, int64_t disk_layers) {
  const int64_t others = options_.layers.count - disk_layers;
  if (host_bytes() == 0) return try_reserve(sequence, disk_layers, 0);
  const double share =
      static_cast<double>(host_bytes()) / static_cast<double>(host_bytes() + memory_bytes());
  const auto after =
      static_cast<double>(memory_.reserved() + host_.reserved() +
                          static_cast<uint64_t>(others) * sequence->memory_layer_bytes);
  const int64_t wanted =
      layers_due(share, after, host_.reserved(), sequence->memory_layer_bytes, others);
  return nearest_first(wanted, others, [&](int64_t host_layers) {
    return try_reserve(sequence, disk_layers, host_layers);
  });
}

Result<std::unique_ptr<KvSequence>> KvCache::reserve(int64_t rows, const KvBudget& budget,
                                                     int64_t chunked_prompt) {
  SPILLWAY_CHECK(rows > 0 && (budget.full() || budget.recent + budget.kept < rows));
  auto sequence = std::make_unique<KvSequence>();
  sequence->rows = rows;
  sequence->budget = budget;
  sequence->layers = options_.layers;
  sequence->chunked_prompt = chunked_prompt;
  sequence->state_bytes = state_bytes(budget, chunked_prompt);
  sequence->memory_layer_bytes = layer_bytes(rows, budget, chunked_prompt);
  sequence->disk_layer_bytes = disk_layer_bytes(rows, budget, chunked_prompt);
  const uint64_t all = sequence_bytes(rows, budget, chunked_prompt);
  // With this many layers on disk the tiers fill at the same pace; neighbouring numbers are tried
  // when one tier is full first.
  const double share = static_cast<double>(disk_bytes()) / static_cast<double>(total_bytes());
  const double after = static_cast<double>(reserved_bytes() + all);
  const int64_t wanted =
      layers_due(share, after, disk_.reserved(), sequence->disk_layer_bytes, options_.layers.count);
  if (nearest_first(wanted, options_.layers.count, [&](int64_t disk_layers) {
        return try_reserve(sequence.get(), disk_layers);
      })) {
    return sequence;
  }
  return Status(Code::kCapacity, "the KV cache has no room for " + std::to_string(rows) +
                                     " positions (" + format_bytes(all) + ") now; " +
                                     format_bytes(total_bytes() - reserved_bytes()) + " of " +
                                     format_bytes(total_bytes()) + " are free");
}

void KvCache::release(std::unique_ptr<KvSequence> sequence) {
  SPILLWAY_CHECK(sequence != nullptr);
  memory_.release(sequence->memory_offset, sequence->memory_bytes());
  host_.release(sequence->host_offset, sequence->host_bytes());
  disk_.release(sequence->disk_offset, sequence->disk_bytes());
}

KvCache::Layer KvCache::layer(const KvSequence& sequence, int64_t layer) const {
  SPILLWAY_CHECK(options_.layers.contains(layer) && !sequence.on_disk(layer));
  const bool host = sequence.tier(layer) == Tier::kHost;
  const int64_t on_host = sequence.host_layers_before(layer);
  const int64_t index = host ? on_host : sequence.others_before(layer) - on_host;
  std::byte* memory = (host ? host_buffer_.data() + sequence.host_offset
                            : buffer_.data() + sequence.memory_offset) +
                      static_cast<uint64_t>(index) * sequence.memory_layer_bytes;
  return {sequence.state_bytes == 0 ? nullptr : memory, memory + sequence.state_bytes};
}

KvCache::Layer KvCache::staged_layer(const KvSequence& sequence, std::byte* memory) const {
  return {sequence.state_bytes == 0 ? nullptr : memory, memory + sequence.disk_state_bytes()};
}

uint64_t KvCache::used_bytes(const KvSequence& sequence, int64_t positions, bool as_on_disk) const {
  const int64_t rows = sequence.budget.chunked_span(sequence.chunked_prompt, positions);
  return (as_on_disk ? sequence.disk_state_bytes() : sequence.state_bytes) +
         layout().sequence_bytes(rows);
}

uint64_t KvCache::needed_bytes(const KvSequence& sequence, int64_t position, int64_t tokens,
                               bool as_on_disk) const {
  const int64_t end = position + tokens;
  if (end != sequence.chunked_prompt) return used_bytes(sequence, end, as_on_disk);
  return (as_on_disk ? sequence.disk_state_bytes() : sequence.state_bytes) +
         layout().sequence_bytes(std::max(end, sequence.budget.span(end)));
}

SpillUse KvCache::use(KvSequence& sequence, int64_t layer, int64_t position, int64_t tokens) const {
  SPILLWAY_CHECK(sequence.on_disk(layer) && position + tokens <= sequence.rows);
  auto& object = sequence.spilled[static_cast<size_t>(sequence.disk_layers_before(layer))];
  return {&object, position == 0 ? 0 : used_bytes(sequence, position, true),
          round_up(needed_bytes(sequence, position, tokens, true), kIoAlignment)};
}

void KvCache::find_changes(const KvSequence& sequence, const Layer& layer, int64_t position,
                           int64_t tokens, std::vector<ByteRange>* changes) const {
  changes->clear();
  const KvBudget& budget = sequence.budget;
  const uint64_t block_bytes = layout().block_bytes();
  const uint64_t rows_at =
      layer.state == nullptr ? 0 : static_cast<uint64_t>(layer.rows - layer.state);
  const int64_t end = position + tokens;
  const bool in_prompt = end <= sequence.chunked_prompt;
  if (position == 0 || (in_prompt && end == sequence.chunked_prompt && !budget.full())) {
    const int64_t rows = budget.chunked_span(sequence.chunked_prompt, end);
    changes->push_back({0, rows_at + layout().sequence_bytes(rows)});
    return;
  }
  if (in_prompt) {  // A chunk: its own rows, and the scores of all
    if (rows_at > 0) changes->push_back({0, rows_at});
    changes->push_back({rows_at + static_cast<uint64_t>(position / kKvBlockRows) * block_bytes,
                        rows_at + layout().sequence_bytes(end)});
    return;
  }
  const auto add = [&](int64_t slot) {
    const uint64_t from = rows_at + static_cast<uint64_t>(slot / kKvBlockRows) * block_bytes;
    changes->push_back({from, from + block_bytes});
  };
  if (rows_at > 0) changes->push_back({0, rows_at});
  add(budget.slot(position));
  if (!budget.has_state()) return;
  for (int64_t head = 0; head < layout().heads; ++head) {
    const int32_t moved = *state_layout(sequence).head(layer.state, head).moved;
    if (moved >= 0) add(moved);
  }
  std::sort(changes->begin(), changes->end(),
            [](const ByteRange& a, const ByteRange& b) { return a.from < b.from; });
  // Merges adjacent ranges and those that several heads changed.
  size_t last = 0;
  for (size_t i = 1; i < changes->size(); ++i) {
    const ByteRange& next = (*changes)[i];
    if (next.from <= (*changes)[last].to) {
      (*changes)[last].to = next.to;
    } else {
      (*changes)[++last] = next;
    }
  }
  changes->resize(last + 1);
}

void KvCache::verify() const {
  memory_.verify();
  host_.verify();
  disk_.verify();
}

}  // namespace spillway
