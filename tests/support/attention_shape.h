// The attention of a made-up model: its heads, the format of its cache and its name in messages.
#pragma once

#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/format.h"
#include "kernels/kv_layout.h"

namespace spillway::test {

struct AttentionShape {
  int64_t heads, kv_heads, head_size;
  Format format;
  DType out = DType::kF32;

  int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
  int64_t out_width() const { return heads * head_size; }
  KvLayout layout() const { return {kv_heads, head_size, format}; }
  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
           std::to_string(head_size) + ", KV " + std::string(format_name(format));
  }
};

}  // namespace spillway::test
