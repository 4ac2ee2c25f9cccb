// Random keys and values of a prompt, as a kernel of the CPU sees them: given, and in the cache of
// the second of two KV heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_body.h"
#include "tests/support/random_data.h"

namespace spillway::test {

struct PromptRows {
  std::vector<float> rows;  // `keys` keys, then as many values, of `size` numbers each
  std::vector<std::byte> cache;
  cpu::PromptView view;  // Of the members above

  PromptRows(Format format, int64_t size, int64_t keys) : rows(random_floats(2 * keys * size, 3)) {
    const KvLayout layout{2, size, format};
    cache.resize(layout.sequence_bytes(keys));
    cpu::HeadView& head = view.head;
    head.k = rows.data();
    head.v = rows.data() + keys * size;
    head.stride = head.head_size = size;
    head.tokens = keys;
    head.kv_format = format;
    head.kv_row_bytes = layout.row_bytes();
    head.kv = cache.data();
    view.source = head.kv;
    view.cached = keys;
    head.block_bytes = layout.block_bytes();
    head.keys_at = layout.run_offset(0, 1);
    head.values_at = head.keys_at + layout.value_offset();
    cpu::store_rows(head, 0, keys, 0);
  }
  // The prompt as it is while only the first `cached` of its keys are in the cache: the others have
  // zeros there.
  cpu::PromptView with_cached(int64_t cached) {
    cpu::PromptView found = view;
    found.cached = cached;
    if (cached == found.keys()) return found;
    found.position = cached;
    found.head.tokens -= cached;
    found.head.k += cached * found.head.stride;
    found.head.v += cached * found.head.stride;
    const size_t bytes = view.head.kv_row_bytes;
    for (int64_t key = cached; key < view.keys(); ++key) {
      std::fill_n(view.head.key_at(key), bytes, std::byte{0});
      std::fill_n(view.head.value_at(key), bytes, std::byte{0});
    }
    return found;
  }
  PromptRows(const PromptRows&) = delete;
  PromptRows& operator=(const PromptRows&) = delete;
};

}  // namespace spillway::test
