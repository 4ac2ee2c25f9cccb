// Memory for direct I/O (O_DIRECT): it starts at a multiple of 4096. Move-only owner. One thread at
// a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "kernels/base/checked_math.h"

namespace spillway {

class AlignedBytes {
 public:
  static constexpr size_t kAlignment = 4096;

  // At least `bytes` of memory, uninitialised; its former contents are lost when it has to grow.
  std::span<std::byte> reserve(size_t bytes) {
    if (bytes > capacity_) {
      data_.reset();
      capacity_ = round_up(bytes, kAlignment);
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity_)));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return {data_.get(), bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  std::unique_ptr<std::byte[], Free> data_;
  size_t capacity_ = 0;
};

}  // namespace spillway
