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
  return std::unique_ptr<KvCache>(new KvCache(std::move(buffer), options));
}

KvCache::KvCache(Buffer buffer, const KvCacheOptions& options)
    : buffer_(std::move(buffer)),
      options_(options),
      memory_(options.memory_bytes),
      disk_(options.disk_bytes) {}

uint64_t KvCache::sequence_bytes(int64_t rows) const {
  return layout().sequence_bytes(rows) * static_cast<uint64_t>(options_.layers);
}

uint64_t KvCache::disk_layer_bytes(int64_t rows) const {
  return round_up(layout().sequence_bytes(rows), kIoAlignment);
}

bool KvCache::can_ever_hold(int64_t rows) const {
  if (disk_bytes() > 0 && disk_layer_bytes(rows) > options_.staging_bytes) return false;
  const uint64_t layers =
      memory_bytes() / layout().sequence_bytes(rows) + disk_bytes() / disk_layer_bytes(rows);
  return layers >= static_cast<uint64_t>(options_.layers);
}

bool KvCache::try_reserve(KvSequence* sequence, int64_t disk_layers) {
  sequence->spilled.resize(static_cast<size_t>(disk_layers));
  const auto memory = memory_.reserve(sequence->memory_bytes());
  if (!memory) return false;
  const auto disk = disk_.reserve(sequence->disk_bytes());
  if (!disk) {
    memory_.release(*memory, sequence->memory_bytes());
    return false;
  }
  sequence->memory_offset = *memory;
  sequence->disk_offset = *disk;
  for (size_t i = 0; i < sequence->spilled.size(); ++i) {
    sequence->spilled[i].offset = *disk + i * sequence->disk_layer_bytes;
    sequence->spilled[i].piece_bytes = layout().block_bytes();
  }
  return true;
}

Result<std::unique_ptr<KvSequence>> KvCache::reserve(int64_t rows) {
  SPILLWAY_CHECK(rows > 0);
  auto sequence = std::make_unique<KvSequence>();
  sequence->rows = rows;
  sequence->layers = options_.layers;
  sequence->memory_layer_bytes = layout().sequence_bytes(rows);
  sequence->disk_layer_bytes = disk_layer_bytes(rows);
  // With this many layers on disk the tiers fill at the same pace; neighbours of that number serve
  // when one tier is full first.
  const double share = static_cast<double>(disk_bytes()) / static_cast<double>(total_bytes());
  const double after = static_cast<double>(reserved_bytes() + sequence_bytes(rows));
  const double due = share * after - static_cast<double>(disk_.reserved());
  const int64_t wanted =
      std::clamp(std::llround(due / static_cast<double>(sequence->disk_layer_bytes)), 0LL,
                 static_cast<long long>(options_.layers));
  for (int64_t distance = 0; distance <= options_.layers; ++distance) {
    for (const int64_t disk_layers : {wanted + distance, wanted - distance}) {
      if (disk_layers < 0 || disk_layers > options_.layers) continue;
      if (try_reserve(sequence.get(), disk_layers)) return sequence;
    }
  }
  return Status(Code::kCapacity, "the KV cache has no room for " + std::to_string(rows) +
                                     " positions (" + format_bytes(sequence_bytes(rows)) +
                                     ") now; " + format_bytes(total_bytes() - reserved_bytes()) +
                                     " of " + format_bytes(total_bytes()) + " are free");
}

void KvCache::release(std::unique_ptr<KvSequence> sequence) {
  SPILLWAY_CHECK(sequence != nullptr);
  memory_.release(sequence->memory_offset, sequence->memory_bytes());
  disk_.release(sequence->disk_offset, sequence->disk_bytes());
}

std::byte* KvCache::layer(const KvSequence& sequence, int64_t layer) const {
  SPILLWAY_CHECK(layer >= 0 && layer < options_.layers && !sequence.on_disk(layer));
  const int64_t index = layer - sequence.disk_layers_before(layer);
  return buffer_.data() + sequence.memory_offset +
         static_cast<uint64_t>(index) * sequence.memory_layer_bytes;
}

SpillUse KvCache::use(KvSequence& sequence, int64_t layer, int64_t rows, int64_t new_rows) const {
  SPILLWAY_CHECK(sequence.on_disk(layer) && rows + new_rows <= sequence.rows);
  auto& object = sequence.spilled[static_cast<size_t>(sequence.disk_layers_before(layer))];
  return {&object, layout().sequence_bytes(rows),
          round_up(layout().sequence_bytes(rows + new_rows), kIoAlignment)};
}

void KvCache::verify() const {
  memory_.verify();
  disk_.verify();
}

}  // namespace spillway
