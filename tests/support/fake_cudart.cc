#include "tests/support/fake_cudart.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/base/clock.h"
#include "tests/support/cuda_emulation.h"
#include "tests/support/fake_cudart_state.h"
#include "tests/support/fake_nccl.h"

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace spillway::fake_cudart {

Fake& fake() {
  static Fake one;
  return one;
}
std::recursive_mutex& mutex() {
  static std::recursive_mutex one;
  return one;
}

}  // namespace spillway::fake_cudart

namespace {

using namespace spillway::fake_cudart;

// What the runtime keeps for every host thread.
struct HostThread {
  int device = 0;
  cudaError_t last = cudaSuccess;  // Until somebody asks
};
HostThread& host_thread() {
  thread_local HostThread one;
  return one;
}

// Why there is none, if so
std::atomic<cudaError_t> no_context{cudaSuccess};
std::atomic<cublasStatus_t> no_blas{CUBLAS_STATUS_SUCCESS};
std::atomic<cublasStatus_t> no_product{CUBLAS_STATUS_SUCCESS};
std::atomic<cudaDataType_t> no_product_of{CUDA_R_32F};

// Of a launch; what every device refuses. (For more shared memory a kernel would have to ask.)
cudaError_t check_grid(const dim3& blocks, const dim3& threads, size_t shared_bytes) {
  if (shared_bytes > size_t{48} << 10) return cudaErrorInvalidValue;
  const bool fits = blocks.x > 0 && blocks.y > 0 && blocks.z > 0 && blocks.x < 1u << 31 &&
                    blocks.y < 1u << 16 && blocks.z < 1u << 16 && threads.x > 0 && threads.y > 0 &&
                    threads.z > 0 && threads.x <= 1024 && threads.y <= 1024 && threads.z <= 64 &&
                    threads.x * threads.y * threads.z <= 1024;
  return fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}

// Why the driver registers no more pieces of memory than so many; success: it does.
std::atomic<cudaError_t> no_registration{cudaSuccess};
std::atomic<size_t> registrations_left{0};

constexpr int kRuntimeVersion = 13000;
std::atomic<int> driver_version{kRuntimeVersion};

std::atomic<bool> by_shape{false};

// Under AddressSanitizer the host cannot reach the device's memory, but through one of these.
class DeviceMemoryOpen {
 public:
  DeviceMemoryOpen() {
    if (depth_++ > 0) return;
    for (const auto& [memory, of] : fake().device) {
      if (of.there) unpoison(memory, of.bytes);
    }
  }
  ~DeviceMemoryOpen() {
    if (--depth_ > 0) return;
    for (const auto& [memory, of] : fake().device) poison(memory, of.bytes);
  }
  DeviceMemoryOpen(const DeviceMemoryOpen&) = delete;

  static bool any() { return depth_ > 0; }

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

 private:
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

// In whose memory it lies; -1: in the host's.
int device_of(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto after = fake().device.upper_bound(const_cast<void*>(address));
  if (after == fake().device.begin()) return -1;
  const auto& [memory, of] = *std::prev(after);
  return at < static_cast<const std::byte*>(memory) + of.bytes ? of.device : -1;
}

// Whether none of the registered pieces of memory ends within [address, address + bytes).
bool within_registration(const void* address, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto after = fake().registered.upper_bound(const_cast<void*>(address));
  if (after == fake().registered.begin()) return true;
  const auto& [memory, size] = *std::prev(after);
  const auto* end = static_cast<const std::byte*>(memory) + size;
  return at >= end || at + bytes <= end;
}

// A default stream's work waits for nothing.
void run_default(CUstream_st& stream) {
  const DeviceMemoryOpen open;
  for (; !stream.work.empty(); stream.work.pop_front()) stream.work.front()();
}
void run_defaults() {
  for (CUstream_st& stream : fake().default_streams) run_default(stream);
}

template <class Done>
cudaError_t run_until(const Done& done) {
  ++fake().waits;
  const double began = spillway::steady_seconds();
  while (!done()) {
    if (run_one() || spillway::fake_nccl::wait_for_ranks(began)) continue;
    std::fprintf(stderr, "fake CUDA runtime: streams wait for each other\n");
    std::abort();
  }
  run_defaults();  // Too late for whoever did not wait for it
  release_unused();
  return fake().lost;
}

cudaError_t allocate(Allocations& from, void** memory, size_t bytes) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);  // Pages, as the driver's
  std::memset(*memory, 0xcd, bytes);                                 // As good as any other garbage
  from[*memory] = {bytes, host_thread().device};
  return cudaSuccess;
}

// Waits for the default streams at least, as the runtime does.
size_t release(Allocations& from, void* memory) {
  run_defaults();
  const auto found = from.find(memory);
  if (found == from.end()) {
    std::fprintf(stderr, "fake CUDA runtime: memory given back that was not taken\n");
    std::abort();
  }
  const size_t bytes = found->second.bytes;
  from.erase(found);
  std::free(memory);
  return bytes;
}

}  // namespace

namespace spillway::fake_cudart {

cudaError_t failed(cudaError_t error) {
  return host_thread().last = error;
}
bool current(int device) {
  return device == host_thread().device;
}
void queue(cudaStream_t stream, std::function<bool()> work) {
  stream->work.push_back(std::move(work));
  if (!fake().eager) return;
  if (!fake().streams.contains(stream)) return run_default(*stream);
  uint64_t steps = fake().random() % 4 == 0 ? fake().random() % 3 : UINT64_MAX;
  while (steps > 0 && run_one()) --steps;
}
cudaError_t take_device_memory(void** memory, size_t bytes) {
  const DeviceMemoryOpen open;
  if (fake().device_bytes > fake().device_limit ||
      bytes > fake().device_limit - fake().device_bytes) {
    return failed(cudaErrorMemoryAllocation);
  }
  fake().device_bytes += bytes;
  return allocate(fake().device, memory, bytes);
}
void give_device_memory(void* memory) {
  const DeviceMemoryOpen open;
  if (fake().device.contains(memory)) set_there(memory, true);
  fake().device_bytes -= release(fake().device, memory);
}

void set_there(void* memory, bool there) {
  Allocation& of = fake().device.at(memory);
  of.there = there;
  DeviceMemoryOpen::unpoison(memory, of.bytes);
  std::memset(memory, there ? 0xcd : 0xdd, of.bytes);
  if (!there || !DeviceMemoryOpen::any()) DeviceMemoryOpen::poison(memory, of.bytes);
}

void refuse_blas(cublasStatus_t why) {
  no_blas = why;
}
void set_driver_version(int version) {
  driver_version = version;
}
void refuse_registration(cudaError_t why, size_t after) {
  const Lock lock(mutex());
  no_registration = why;
  registrations_left = fake().registered.size() + after;
}
size_t registrations() {
  const Lock lock(mutex());
  return fake().registered.size();
}
void refuse_products(cudaDataType_t type, cublasStatus_t why) {
  no_product_of = type;
  no_product = why;
}
cublasStatus_t why_no_product(cudaDataType_t type) {
  return type == no_product_of ? no_product.load() : CUBLAS_STATUS_SUCCESS;
}
void set_context_bytes(size_t bytes) {
  const Lock lock(mutex());
  fake().context_bytes = bytes;
}
void set_seed(uint64_t seed) {
  const Lock lock(mutex());
  const uint64_t own = spillway::emulation::seed_of_run(seed);
  fake().random.seed(own);
  fake().eager = own % 2 == 1;
}
void fail_copy(int64_t calls) {
  const Lock lock(mutex());
  fake().copies_left = calls;
  fake().lost = cudaSuccess;
}
void refuse_context(cudaError_t why) {
  no_context = why;
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
void set_sums_by_shape(bool on) {
  by_shape = on;
}
bool sums_by_shape() {
  return by_shape;
}
uint64_t bytes_to_host() {
  const Lock lock(mutex());
  return fake().to_host_bytes;
}
uint64_t bytes_to_device_queued() {
  const Lock lock(mutex());
  return fake().to_device_queued;
}
uint64_t launches() {
  const Lock lock(mutex());
  return fake().launches;
}
uint64_t waits() {
  const Lock lock(mutex());
  return fake().waits;
}
size_t leaks() {
  const Lock lock(mutex());
  const Fake& one = fake();
  return one.streams.size() + one.events.size() + one.device.size() + one.pinned.size() +
         one.registered.size() + one.pools.size();
}

}  // namespace spillway::fake_cudart

namespace spillway::emulation {

void launch(cudaStream_t stream, dim3 blocks, dim3 threads, size_t shared_bytes,
            std::function<void()> kernel) {
  const Lock lock(mutex());
  cudaError_t error = check_grid(blocks, threads, shared_bytes);
  if (!current(stream->device)) error = cudaErrorInvalidResourceHandle;
  if (error != cudaSuccess) {
    failed(error);
    return;
  }
  ++fake().launches;
  queue(stream, [=] {
    if (fake().lost == cudaSuccess) run_grid(blocks, threads, shared_bytes, kernel);
    return true;
  });
}

}  // namespace spillway::emulation

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  const Lock lock(mutex());
  *count = 0;
  if (driver_version < kRuntimeVersion) return failed(cudaErrorInsufficientDriver);
  *count = kDevices;
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
cudaError_t cudaSetDevice(int device) {
  const Lock lock(mutex());
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  if (fake().lost == cudaSuccess) host_thread().device = device;
  return fake().lost;
}
cudaError_t cudaGetDevice(int* device) {
  *device = host_thread().device;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "the device is lost";
  }
}
cudaError_t cudaGetLastError() {
  const Lock lock(mutex());
  const cudaError_t last = std::exchange(host_thread().last, cudaSuccess);
  return fake().lost != cudaSuccess ? fake().lost : last;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(mutex());
  if (no_context != cudaSuccess) return failed(no_context);
  *total = fake().device_limit;
  const size_t taken = fake().device_bytes + fake().context_bytes;
  *free = fake().device_limit - std::min(taken, fake().device_limit);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(mutex());
  return take_device_memory(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  const Lock lock(mutex());
  if (memory == nullptr) return fake().lost;
  const int device = device_of(memory);
  if (device >= 0 && !current(device)) return failed(cudaErrorInvalidValue);
  ++fake().waits;
  give_device_memory(memory);
  return fake().lost;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  const Lock lock(mutex());
  return allocate(fake().pinned, memory, bytes);
}
// Memory of the caller's.
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  const Lock lock(mutex());
  if (no_registration != cudaSuccess && fake().registered.size() >= registrations_left) {
    return failed(no_registration);
  }
  if (!fake().registered.try_emplace(memory, bytes).second) {
    return failed(cudaErrorHostMemoryAlreadyRegistered);
  }
  return fake().lost;
}
cudaError_t cudaHostUnregister(void* memory) {
  const Lock lock(mutex());
  run_defaults();
  if (fake().registered.erase(memory) == 0) return failed(cudaErrorHostMemoryNotRegistered);
  return fake().lost;
}
cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(mutex());
  if (memory != nullptr) release(fake().pinned, memory);
  return fake().lost;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  const Lock lock(mutex());
  const int device = device_of(memory);
  if (device >= 0 && !current(device)) return failed(cudaErrorInvalidValue);
  queue(&fake().default_streams[host_thread().device], [=] {
    if (fake().lost == cudaSuccess) std::memset(memory, value, bytes);
    return true;
  });
  return fake().lost;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex());
  *stream = *fake().streams.insert(new CUstream_st{host_thread().device, {}}).first;
  return fake().lost;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex());
  if (!current(stream->device)) return failed(cudaErrorInvalidResourceHandle);
  run_until([&] { return stream->work.empty(); });
  fake().streams.erase(stream);
  delete stream;
  return fake().lost;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex());
  if (stream == nullptr) {
    run_default(fake().default_streams[host_thread().device]);
    return fake().lost;
  }
  if (!current(stream->device)) return failed(cudaErrorInvalidResourceHandle);
  return run_until([&] { return stream->work.empty(); });
}
// The event may be another device's.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex());
  if (!current(stream->device)) return failed(cudaErrorInvalidResourceHandle);
  const uint64_t wanted = event->recorded;
  queue(stream, [=] { return event->happened >= wanted; });
  return fake().lost;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock(mutex());
  if (!current(stream->device)) return failed(cudaErrorInvalidResourceHandle);
  for (const int device : {device_of(from), device_of(to)}) {
    if (device >= 0 && device != stream->device) return failed(cudaErrorInvalidValue);
  }
  for (const void* at : {from, static_cast<const void*>(to)}) {
    if (!within_registration(at, bytes)) return failed(cudaErrorInvalidValue);
  }
  if (device_of(to) >= 0 && device_of(from) < 0) fake().to_device_queued += bytes;
  queue(stream, [=] {
    if (fake().copies_left >= 0 && fake().copies_left-- == 0)
      fake().lost = cudaErrorECCUncorrectable;
    if (fake().lost == cudaSuccess) std::memcpy(to, from, bytes);
    if (device_of(from) >= 0 && device_of(to) < 0) fake().to_host_bytes += bytes;
    return true;
  });
  return fake().lost;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Lock lock(mutex());
  *event = *fake().events.insert(new CUevent_st{.device = host_thread().device}).first;
  return fake().lost;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(mutex());
  if (!current(event->device)) return failed(cudaErrorInvalidResourceHandle);
  run_until([&] { return event->happened >= event->recorded; });
  fake().events.erase(event);
  delete event;
  return fake().lost;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex());
  if (!current(stream->device) || event->device != stream->device) {
    return failed(cudaErrorInvalidResourceHandle);
  }
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
  if (!current(event->device)) return failed(cudaErrorInvalidResourceHandle);
  for (uint64_t steps = fake().random() % 3; steps > 0; --steps) run_one();
  if (event->happened < event->recorded) return failed(cudaErrorNotReady);
  return fake().lost;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(mutex());
  if (start->happened < start->recorded || end->happened < end->recorded) {
    return failed(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>((end->at - start->at) * 1e3);
  return fake().lost;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex());
  if (!current(event->device)) return failed(cudaErrorInvalidResourceHandle);
  return run_until([&] { return event->happened >= event->recorded; });
}

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const Lock lock(mutex());
  *handle = nullptr;
  if (no_blas != CUBLAS_STATUS_SUCCESS) return no_blas;
  *handle = new cublasContext{.device = host_thread().device};
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
const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "a cuBLAS status";
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
  if (!current(handle->device) || !current(handle->stream->device)) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (const cublasStatus_t why = why_no_product(type_a); why != CUBLAS_STATUS_SUCCESS) return why;
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
        const double sum = spillway::fake_cudart::product_sum(k, n, [&](int64_t i) {
          return element(a, row * lda + i) * element(b, column * ldb + i);
        });
        float& target = out[column * ldc + row];
        target = static_cast<float>(scale * sum + (keep == 0 ? 0.0 : double{keep} * target));
      }
    }
    return true;
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
