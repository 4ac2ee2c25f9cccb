// A CUDA runtime, and what of cuBLAS we use, without a device, for programs that link it instead of
// the toolkit's: memory is host memory, streams are queues whose work runs when somebody asks for
// its outcome, in an order among streams that a seed shuffles, as late as it can. So work that did
// not wait for what it needs reads what is not there yet.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace spillway::fake_cudart {

void set_seed(uint64_t seed);

// The `calls`-th copy from now on, and everything behind it, fails as a lost device does. -1: none.
void fail_copy(int64_t calls);

// Device memory that can be had; what is there already counts.
void limit_memory(size_t bytes);

// Compute capability of the devices that are opened from now on; 9.0 at first.
void set_capability(int major, int minor = 0);

// Copied from device memory to the host's so far.
uint64_t bytes_to_host();

// That cuBLASLt was given so far.
uint64_t fused_products();

// To be copied from the host's memory to the device's, done or not, so far.
uint64_t bytes_to_device_queued();

// Allocations, streams and events that were never given back.
size_t leaks();

}  // namespace spillway::fake_cudart
