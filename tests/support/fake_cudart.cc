#include "tests/support/fake_cudart.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/base/clock.h"
#include "tests/support/cuda_emulation.h"

// The opaque types of the runtime.
struct CUstream_st {
  std::deque<std::function<bool()>> work;  // False: not yet, something else must run first.
};
struct cublasContext {
  cudaStream_t stream = nullptr;
};
struct CUevent_st {
  uint64_t recorded = 0, happened = 0;
  double at = 0;  // steady_seconds() of the latter
};

namespace {

struct Fake {
  std::mt19937_64 random{1};
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  std::map<void*, size_t> device, pinned;
  size_t device_bytes = 0, device_limit = size_t{1} << 40;
  int64_t copies_left = -1;
  uint64_t to_host_bytes = 0;
  uint64_t to_device_queued = 0;
  int major = 9, minor = 0;  // Compute capability
  cudaError_t lost = cudaSuccess;
  cudaError_t last = cudaSuccess;  // Until somebody asks
};
Fake& fake() {
  static Fake one;
  return one;
}

// Any thread may call the runtime. Whoever waits does the work of all.
using Lock = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex& mutex() {
  static std::recursive_mutex one;
  return one;
}

// Under AddressSanitizer the host cannot reach the device's memory, but through one of these.
class DeviceMemoryOpen {
 public:
  DeviceMemoryOpen() {
    if (depth_++ > 0) return;
    for (const auto& [memory, bytes] : fake().device) unpoison(memory, bytes);
  }
  ~DeviceMemoryOpen() {
    if (--depth_ > 0) return;
    for (const auto& [memory, bytes] : fake().device) poison(memory, bytes);
  }
  DeviceMemoryOpen(const DeviceMemoryOpen&) = delete;

 private:
#ifdef __SANITIZE_ADDRESS__
  static void poison(void* memory, size_t bytes) {
    __asan_poison_memory_region(memory, bytes);
  }
  static void unpoison(void* memory, size_t bytes) {
    __asan_unpoison_memory_region(memory, bytes);
  }
#else
  static void poison(void*, size_t) {}
  static void unpoison(void*, size_t) {}
#endif
  static inline int depth_ = 0;
};

// Runs one piece of work of some stream; false when there is none that can.
bool run_one() {
  std::vector<cudaStream_t> order(fake().streams.begin(), fake().streams.end());
  std::shuffle(order.begin(), order.end(), fake().random);
  for (cudaStream_t stream : order) {
    const DeviceMemoryOpen open;
    if (stream->work.empty() || !stream->work.front()()) continue;
    stream->work.pop_front();
    return true;
  }
  return false;
}

bool on_device(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto after = fake().device.upper_bound(const_cast<void*>(address));
  if (after == fake().device.begin()) return false;
  const auto& [memory, bytes] = *std::prev(after);
  return at < static_cast<const std::byte*>(memory) + bytes;
}

template <class Done>
cudaError_t run_until(const Done& done) {
  while (!done()) {
    if (run_one()) continue;
    std::fprintf(stderr, "fake CUDA runtime: streams wait for each other\n");
    std::abort();
  }
  return fake().lost;
}

void queue(cudaStream_t stream, std::function<bool()> work) {
  stream->work.push_back(std::move(work));
}

cudaError_t allocate(std::map<void*, size_t>& from, void** memory, size_t bytes) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);  // Pages, as the driver's
  std::memset(*memory, 0xcd, bytes);                                 // As good as any other garbage
  from[*memory] = bytes;
  return cudaSuccess;
}

size_t release(std::map<void*, size_t>& from, void* memory) {
  const auto found = from.find(memory);
  if (found == from.end()) {
    std::fprintf(stderr, "fake CUDA runtime: memory given back that was not taken\n");
    std::abort();
  }
  const size_t bytes = found->second;
  from.erase(found);
  std::free(memory);
  return bytes;
}

}  // namespace

namespace spillway::fake_cudart {

void set_seed(uint64_t seed) {
  const Lock lock(mutex());
  fake().random.seed(seed);
}
void fail_copy(int64_t calls) {
  const Lock lock(mutex());
  fake().copies_left = calls;
  fake().lost = cudaSuccess;
}
void limit_memory(size_t bytes) {
  const Lock lock(mutex());
  fake().device_limit = bytes;
}
void set_capability(int major, int minor) {
  const Lock lock(mutex());
  fake().major = major;
  fake().minor = minor;
}
uint64_t bytes_to_host() {
  const Lock lock(mutex());
  return fake().to_host_bytes;
}
uint64_t bytes_to_device_queued() {
  const Lock lock(mutex());
  return fake().to_device_queued;
}
size_t leaks() {
  const Lock lock(mutex());
  const Fake& one = fake();
  return one.streams.size() + one.events.size() + one.device.size() + one.pinned.size();
}

}  // namespace spillway::fake_cudart

namespace spillway::emulation {

void launch(cudaStream_t stream, dim3 blocks, dim3 threads, size_t shared_bytes,
            std::function<void()> kernel) {
  const Lock lock(mutex());
  queue(stream, [=] {
    if (fake().lost == cudaSuccess) run_grid(blocks, threads, shared_bytes, kernel);
    return true;
  });
}

}  // namespace spillway::emulation

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(mutex());
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const Lock lock(mutex());
  *properties = {};
  std::strcpy(properties->name, "emulated device");
  properties->major = fake().major;
  properties->minor = fake().minor;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  const Lock lock(mutex());
  return fake().lost;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "the device is lost";
}
cudaError_t cudaGetLastError() {
  const Lock lock(mutex());
  const cudaError_t last = std::exchange(fake().last, cudaSuccess);
  return fake().lost != cudaSuccess ? fake().lost : last;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(mutex());
  *total = fake().device_limit;
  *free = fake().device_limit - fake().device_bytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(mutex());
  const DeviceMemoryOpen open;
  if (bytes > fake().device_limit - fake().device_bytes) return cudaErrorMemoryAllocation;
  fake().device_bytes += bytes;
  return allocate(fake().device, memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  const Lock lock(mutex());
  const DeviceMemoryOpen open;
  if (memory != nullptr) fake().device_bytes -= release(fake().device, memory);
  return fake().lost;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  const Lock lock(mutex());
  return allocate(fake().pinned, memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(mutex());
  if (memory != nullptr) release(fake().pinned, memory);
  return fake().lost;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  const Lock lock(mutex());
  const DeviceMemoryOpen open;
  std::memset(memory, value, bytes);
  return fake().lost;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex());
  *stream = *fake().streams.insert(new CUstream_st()).first;
  return fake().lost;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex());
  run_until([&] { return stream->work.empty(); });
  fake().streams.erase(stream);
  delete stream;
  return fake().lost;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex());
  return run_until([&] { return stream->work.empty(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex());
  const uint64_t wanted = event->recorded;
  queue(stream, [=] { return event->happened >= wanted; });
  return fake().lost;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(mutex());
  if (on_device(to) && !on_device(from)) fake().to_device_queued += bytes;
  queue(stream, [=] {
    if (fake().copies_left >= 0 && fake().copies_left-- == 0)
      fake().lost = cudaErrorECCUncorrectable;
    if (fake().lost == cudaSuccess) std::memcpy(to, from, bytes);
    if (on_device(from) && !on_device(to)) fake().to_host_bytes += bytes;
    return true;
  });
  return fake().lost;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Lock lock(mutex());
  *event = *fake().events.insert(new CUevent_st()).first;
  return fake().lost;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(mutex());
  run_until([&] { return event->happened >= event->recorded; });
  fake().events.erase(event);
  delete event;
  return fake().lost;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex());
  const uint64_t number = ++event->recorded;
  queue(stream, [=] {
    event->happened = number;
    event->at = spillway::steady_seconds();
    return true;
  });
  return fake().lost;
}
// Now and then some work gets done meanwhile. As with the real one, what is no error is the last
// error all the same.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex());
  for (uint64_t steps = fake().random() % 3; steps > 0; --steps) run_one();
  if (event->happened < event->recorded) return fake().last = cudaErrorNotReady;
  return fake().lost;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(mutex());
  if (start->happened < start->recorded || end->happened < end->recorded) {
    return fake().last = cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>((end->at - start->at) * 1e3);
  return fake().lost;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex());
  return run_until([&] { return event->happened >= event->recorded; });
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const Lock lock(mutex());
  *handle = new cublasContext();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const Lock lock(mutex());
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  const Lock lock(mutex());
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
// As its manual says, column by column, in double precision; only what linear layers ask for.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType type_a, int lda, const void* b, cudaDataType type_b,
                            int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const Lock lock(mutex());
  if (op_a != CUBLAS_OP_T || op_b != CUBLAS_OP_N || type_a != type_b || type_c != CUDA_R_32F ||
      compute != CUBLAS_COMPUTE_32F || lda < k || ldb < k || ldc < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const auto element = [type_a](const void* matrix, int64_t i) -> double {
    if (type_a == CUDA_R_32F) return static_cast<const float*>(matrix)[i];
    if (type_a == CUDA_R_16F) return __half2float(static_cast<const __half*>(matrix)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(matrix)[i]);
  };
  queue(handle->stream, [=] {
    auto* out = static_cast<float*>(c);
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += element(a, row * lda + i) * element(b, column * ldb + i);
        }
        float& target = out[column * ldc + row];
        target = static_cast<float>(scale * sum + (keep == 0 ? 0.0 : double{keep} * target));
      }
    }
    return true;
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
