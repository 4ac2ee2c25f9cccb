// A CUDA runtime, and what of cuBLAS we use, without a device, for programs that link it instead of
// the toolkit's: memory is host memory, streams are queues whose work runs when somebody asks for
// its outcome, in an order among streams that a seed shuffles, as late as it can. So work that did
// not wait for what it needs reads what is not there yet. Or, by the seed, mostly as soon as it is
// queued: then it reads what is filled in too late. There are two devices; what is one's is
// used by a host thread while that device is the thread's, else the call fails. What the default
// streams are given runs when somebody waits for it, or else after the next wait for other work.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace spillway::fake_cudart {

// Of the orders from now on, in this run (emulation::run_seed()). Of two neighbours one has work
// done late, the other at once; in the run of seed 0 the even ones are late.
void set_seed(uint64_t seed);

// The `calls`-th copy from now on, and everything behind it, fails as a lost device does. -1: none.
void fail_copy(int64_t calls);

// Device memory that can be had; what is there already counts.
void limit_memory(size_t bytes);

// Whether devices that are opened from now on have memory pools, and in steps of how many bytes
// these grow.
void set_memory_pools(bool there, size_t step = 4096);

// What cudaMemGetInfo says is gone beside what was allocated: the context's, or other programs'.
void set_context_bytes(size_t bytes);

// Calls so far that waited for work of the device.
uint64_t waits();

// From now on cuBLAS gives no handle, for this reason; CUBLAS_STATUS_SUCCESS: it does.
void refuse_blas(cublasStatus_t why);

// From now on cuBLAS and cuBLASLt have no product of this format, for this reason;
// CUBLAS_STATUS_SUCCESS: they do.
void refuse_products(cudaDataType_t type, cublasStatus_t why);
// Of a product of this format.
cublasStatus_t why_no_product(cudaDataType_t type);

// Of the driver: 12020 is CUDA 12.2. The runtime is 13.0, as the driver at first.
void set_driver_version(int version);

// From now on the driver registers `after` more pieces of host memory and then none, for this
// reason; cudaSuccess: it does.
void refuse_registration(cudaError_t why, size_t after = 0);
// That are there.
size_t registrations();

// From now on no device gives a context, for this reason; cudaSuccess: each does.
void refuse_context(cudaError_t why);

// Compute capability of the devices that are opened from now on; 9.0 at first.
void set_capability(int major, int minor = 0);

// Copied from device memory to the host's so far.
uint64_t bytes_to_host();

// That cuBLASLt was given so far.
uint64_t fused_products();

// Kernels of ours that were launched so far.
uint64_t launches();

// From now on a matrix product rounds as float32 sums do, differently for every number of rows: as
// a library that chooses its way of summing by the shapes.
void set_sums_by_shape(bool on);
bool sums_by_shape();

// The sum of term(0), term(1), ...: an element of a product with so many `tokens`. In double
// precision; or, by shape, in float32 and in another order for every number of tokens.
template <class Term>
double product_sum(int64_t count, int64_t tokens, Term term) {
  if (!sums_by_shape()) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += term(i);
    return sum;
  }
  constexpr int64_t kParts = 8;
  float parts[kParts] = {}, sum = 0;
  const int64_t used = 1 + tokens % kParts;
  for (int64_t i = 0; i < count; ++i) parts[i % used] += static_cast<float>(term(i));
  for (const float part : parts) sum += part;
  return sum;
}

// To be copied from the host's memory to the device's, done or not, so far.
uint64_t bytes_to_device_queued();

// Allocations, pools, streams and events that were never given back.
size_t leaks();

}  // namespace spillway::fake_cudart
