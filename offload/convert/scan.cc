#include "offload/convert/scan.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "offload/io/aligned_bytes.h"
#include "offload/io/parallel_tasks.h"
#include "offload/model_file/non_finite.h"

namespace spillway {

namespace {

constexpr uint64_t kChunkBytes = uint64_t{8} << 20;

// A record to verify, or a chunk of a tensor in which to count.
struct Chunk {
  bool record = false;
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

std::vector<Chunk> list_chunks(const Checkpoint& checkpoint, bool verify) {
  std::vector<Chunk> chunks;
  std::vector<bool> listed(checkpoint.records().size());
  for (uint32_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const StoredTensor& tensor = checkpoint.tensors()[i].stored;
    // A record comes right before its tensor, so that the bytes are read from disk once.
    if (verify && tensor.record && !listed[*tensor.record]) {
      listed[*tensor.record] = true;
      chunks.push_back({true, *tensor.record, 0, checkpoint.records()[*tensor.record].bytes});
    }
    if (!tensor.format->dtype) continue;
    for (uint64_t offset = 0; offset < tensor.bytes; offset += kChunkBytes) {
      chunks.push_back({false, i, offset, std::min(kChunkBytes, tensor.bytes - offset)});
    }
  }
  return chunks;
}

}  // namespace

Result<std::vector<TensorDamage>> scan_checkpoint(const Checkpoint& checkpoint,
                                                  const ScanOptions& options) {
  const std::vector<Chunk> chunks = list_chunks(checkpoint, options.verify);
  uint64_t total_bytes = 0;
  for (const Chunk& chunk : chunks) total_bytes += chunk.bytes;
  std::atomic<uint64_t> done_bytes = 0;
  std::mutex mutex;
  std::map<uint32_t, TensorDamage> found;
  const auto work = [&](size_t index, unsigned) -> Status {
    const Chunk& chunk = chunks[index];
    done_bytes += chunk.bytes;
    if (chunk.record) return checkpoint.verify(checkpoint.records()[chunk.index]);
    const CheckpointTensor& tensor = checkpoint.tensors()[chunk.index];
    std::vector<std::byte> bytes(chunk.bytes);
    SPILLWAY_RETURN_IF_ERROR(checkpoint.read(tensor, chunk.offset, bytes));
    const NonFinite counts = count_non_finite(*tensor.stored.format->dtype, bytes);
    if (counts.total() == 0) return {};
    const std::lock_guard lock(mutex);
    found[chunk.index].tensor = tensor.stored.name;
    found[chunk.index].stored += counts;
    return {};
  };
  SPILLWAY_RETURN_IF_ERROR(run_tasks(chunks.size(), reading_threads(options.threads), work, [&] {
    return !options.progress || options.progress(done_bytes, total_bytes);
  }));
  SPILLWAY_RETURN_IF_ERROR(checkpoint.check_unchanged());
  std::vector<TensorDamage> damage;
  for (auto& [index, entry] : found) damage.push_back(std::move(entry));
  return damage;
}

Status scan_model_file(const ModelFile& file, const ScanOptions& options) {
  const std::vector<SlabInfo>& slabs = file.table().slabs;
  const uint64_t total_bytes = file.table().weight_bytes();
  std::atomic<uint64_t> done_bytes = 0;
  const unsigned threads = reading_threads(options.threads);
  std::vector<AlignedBytes> buffers(threads);
  const auto work = [&](size_t index, unsigned thread) -> Status {
    const auto buffer = buffers[thread].reserve(slabs[index].bytes);
    done_bytes += buffer.size();
    return file.read_slab(static_cast<uint32_t>(index), buffer);
  };
  return run_tasks(slabs.size(), threads, work,
                   [&] { return !options.progress || options.progress(done_bytes, total_bytes); });
}

}  // namespace spillway
