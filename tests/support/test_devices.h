// The devices that conformance tests run on, and arrays in their memory.
//
// Test cases with the tag [sanitizer] also run under compute-sanitizer, which is slow
// (scripts/gpu_check.sh): small ones, and between them every kernel of ours.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/tensor.h"
#include "tests/support/packed_matrix.h"

namespace spillway::test {

// Those of this program: the CPU (two threads, so that work is really split) with our matrix
// products in float32 and, where it has the instructions, in bf16 and by matrix units; then, where
// there is one, the CUDA device. cuda_test has an emulated one instead. With
// SPILLWAY_TEST_CUDA=required in the environment, as scripts/gpu_check.sh has it, it is an error
// (std::runtime_error) that there is no CUDA device; with SPILLWAY_TEST_CUDA=only the CPU's are
// left out, too, which every other machine can test.
std::vector<std::unique_ptr<Device>> test_devices();

// Whether there is a device with memory of its own.
bool has_accelerator();

// An emulated device runs the work of its streams in another order from now on.
void shuffle_accelerator(uint64_t seed);

// Allocations, streams and events of an emulated device that were never given back.
size_t accelerator_leaks();

// Whether matrix products of the accelerator round by their shapes, as cuBLAS's do, so that a run
// with other blocks is the same to within rounding only. The emulated device sums in double
// precision: only when it was told to.
bool sums_by_shape();
void emulate_sums_by_shape(bool on);

// Whether the accelerator is emulated.
bool emulated();

// False where a device is emulated and thousands of times slower, and under the sanitizers, where
// all is ten times slower: then the small cases must do.
bool thorough();

// Values in a device's memory, to and fro by a stream of it.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Device& device, Stream& stream, const std::vector<T>& values)
      : stream_(stream), count_(values.size()) {
    // A little more than needed: an empty array has an address, too.
    memory_ = device.allocate(Memory::kDevice, bytes() + 64).value();
    if (values.empty()) return;
    stream.copy(memory_.data(), reinterpret_cast<const std::byte*>(values.data()), bytes());
    wait();
  }

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    if (values.empty()) return values;
    stream_.copy(reinterpret_cast<std::byte*>(values.data()), memory_.data(), bytes());
    wait();
    return values;
  }
  void write(const std::vector<T>& values) {
    SPILLWAY_CHECK(values.size() == count_);
    stream_.copy(memory_.data(), reinterpret_cast<const std::byte*>(values.data()), bytes());
    wait();
  }
  MatrixView matrix(int64_t rows, int64_t columns) const {
    SPILLWAY_CHECK(sizeof(T) == sizeof(float));
    return dense_matrix(memory_.data(), DType::kF32, rows, columns);
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  void wait() const { SPILLWAY_CHECK(stream_.record().wait().ok()); }

  Stream& stream_;
  size_t count_;
  Buffer memory_;
};

// A packed matrix whose slabs lie apart in a device's memory.
class DeviceMatrix {
 public:
  DeviceMatrix(Device& device, Stream& stream, const PackedMatrix& packed)
      : matrix_(packed.matrix()) {
    for (const WeightSlab& slab : packed.matrix().slabs) {
      const size_t bytes = packed_bytes(matrix_.layout, matrix_.format, slab.rows, matrix_.columns);
      arrays_.push_back(std::make_unique<DeviceArray<std::byte>>(
          device, stream, std::vector<std::byte>(slab.data, slab.data + bytes)));
      slabs_.push_back({arrays_.back()->data(), slab.rows});
    }
    matrix_.slabs = slabs_;
  }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  const WeightMatrix& matrix() const { return matrix_; }

 private:
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> arrays_;
  std::vector<WeightSlab> slabs_;
  WeightMatrix matrix_;
};

}  // namespace spillway::test
