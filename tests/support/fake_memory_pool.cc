// Pools of a device's memory, without a device, as their manual says. A block is there for the work
// of its stream from where it was asked for to where it was given back, and garbage before and
// after; the stream may have it again at once, others when its work is done. What nobody uses stays
// with the pool until it is trimmed or somebody waits for the device.
#include <cstdio>
#include <cstdlib>

#include "tests/support/fake_cudart.h"
#include "tests/support/fake_cudart_state.h"

struct CUmemPoolHandle_st {
  enum class State : uint8_t { kUsed, kLeaving, kUnused };
  struct Block {
    size_t bytes = 0;
    State state = State::kUsed;
    cudaStream_t stream = nullptr;  // Of the last use
    uint64_t uses = 0;
  };
  int device = 0;
  std::map<void*, Block> blocks = {};
  uint64_t threshold = 0;  // The default, which nobody changes

  size_t reserved() const {
    size_t bytes = 0;
    for (const auto& [memory, block] : blocks) bytes += block.bytes;
    return bytes;
  }
  void trim(size_t keep) {
    for (auto at = blocks.begin(); at != blocks.end() && reserved() > keep;) {
      const auto next = std::next(at);
      if (at->second.state == State::kUnused) {
        spillway::fake_cudart::give_device_memory(at->first);
        blocks.erase(at);
      }
      at = next;
    }
  }
};

namespace {

using namespace spillway::fake_cudart;
using State = CUmemPoolHandle_st::State;

// The smallest block that the stream may have without waiting.
void* find_block(CUmemPoolHandle_st& pool, size_t bytes, cudaStream_t stream) {
  void* best = nullptr;
  for (const auto& [memory, block] : pool.blocks) {
    const bool leaving = block.state == State::kLeaving && block.stream == stream;
    if (block.bytes < bytes || (block.state != State::kUnused && !leaving)) continue;
    if (best == nullptr || block.bytes < pool.blocks.at(best).bytes) best = memory;
  }
  return best;
}

cudaMemPool_t pool_of(void* memory) {
  for (cudaMemPool_t pool : fake().pools) {
    if (pool->blocks.contains(memory)) return pool;
  }
  return nullptr;
}

}  // namespace

namespace spillway::fake_cudart {

void release_unused() {
  for (cudaMemPool_t pool : fake().pools) pool->trim(pool->threshold);
}

void set_memory_pools(bool there, size_t step) {
  const Lock lock(mutex());
  fake().has_pools = there;
  fake().pool_step = step;
}

}  // namespace spillway::fake_cudart

extern "C" {

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const Lock lock(mutex());
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  if (attribute != cudaDevAttrMemoryPoolsSupported) return failed(cudaErrorInvalidValue);
  *value = fake().has_pools ? 1 : 0;
  return fake().lost;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const Lock lock(mutex());
  const bool good = properties->allocType == cudaMemAllocationTypePinned &&
                    properties->location.type == cudaMemLocationTypeDevice &&
                    properties->location.id >= 0 && properties->location.id < kDevices;
  if (!good) return failed(cudaErrorInvalidValue);
  if (!fake().has_pools) return failed(cudaErrorNotSupported);
  *pool = *fake().pools.insert(new CUmemPoolHandle_st{.device = properties->location.id}).first;
  return fake().lost;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const Lock lock(mutex());
  for (const auto& [memory, block] : pool->blocks) {
    if (block.state == State::kUnused) continue;
    std::fprintf(stderr, "fake CUDA runtime: a pool is destroyed whose memory is in use\n");
    std::abort();
  }
  pool->trim(0);
  fake().pools.erase(pool);
  delete pool;
  return fake().lost;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  const Lock lock(mutex());
  pool->trim(keep);
  return fake().lost;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const Lock lock(mutex());
  if (attribute != cudaMemPoolAttrReservedMemCurrent) return failed(cudaErrorInvalidValue);
  *static_cast<uint64_t*>(value) = pool->reserved();
  return fake().lost;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const Lock lock(mutex());
  if (fake().lost != cudaSuccess) return fake().lost;
  if (!current(stream->device) || pool->device != stream->device) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  const size_t step = fake().pool_step, rounded = (bytes + step - 1) / step * step;
  *memory = find_block(*pool, bytes, stream);
  if (*memory == nullptr) {
    const cudaError_t error = take_device_memory(memory, rounded);
    if (error != cudaSuccess) return error;
    set_there(*memory, false);
    pool->blocks[*memory].bytes = rounded;
  }
  CUmemPoolHandle_st::Block& block = pool->blocks.at(*memory);
  block.state = State::kUsed;
  block.stream = stream;
  ++block.uses;
  queue(stream, [at = *memory] {
    set_there(at, true);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const Lock lock(mutex());
  const cudaMemPool_t pool = pool_of(memory);
  if (pool == nullptr || pool->blocks.at(memory).state != State::kUsed) {
    std::fprintf(stderr, "fake CUDA runtime: memory given back to a pool that it did not give\n");
    std::abort();
  }
  if (!current(stream->device)) return failed(cudaErrorInvalidResourceHandle);
  CUmemPoolHandle_st::Block& block = pool->blocks.at(memory);
  block.state = State::kLeaving;
  block.stream = stream;
  queue(stream, [pool, memory, use = block.uses] {
    set_there(memory, false);
    const auto found = pool->blocks.find(memory);
    if (found != pool->blocks.end() && found->second.uses == use) {
      found->second.state = State::kUnused;
    }
    return true;
  });
  return fake().lost;
}

}  // extern "C"
