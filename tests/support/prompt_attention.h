// A prompt's attention of one KV head by any kind of products, without a device around it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_body.h"
#include "tests/support/prompt_rows.h"
#include "tests/support/random_data.h"

namespace spillway::test {

struct PromptCase {
  Format format;
  int64_t size, group, cached, keys, window;
  cpu::FactorParts parts = {};
};

// Queries of a prompt, of which the first `cached` positions are computed.
class PromptAttention {
 public:
  explicit PromptAttention(const PromptCase& c)
      : rows_(c.format, c.size, c.keys), view_(rows_.with_cached(c.cached)) {
    if (c.cached == c.keys) {  // All lie in the cache, whose last positions ask.
      view_.position = c.keys / 2 / kKvBlockRows * kKvBlockRows;
      view_.head.tokens = c.keys - view_.position;
    }
    view_.group = c.group;
    view_.window = c.window;
    view_.parts = c.parts;
    view_.head.scale = 0.2f;
    queries_ = random_floats(view_.rows() * c.size, 5);
    view_.head.q = queries_.data();
    // The queries of a token lie side by side; its keys and values do not.
    if (c.group > 1) spread(c);
    view_.head.out_stride = c.group * c.size;
  }

  cpu::PromptView& view() { return view_; }
  std::vector<float>& queries() { return queries_; }

  // The outputs of rows in `pieces` pieces; with `scored`, scores() too.
  std::vector<float> attend(cpu::PromptProducts products, int64_t pieces, bool scored) {
    view_.products = products;
    found_.assign(queries_.size(), NAN);
    scores_.assign(static_cast<size_t>((view_.keys() + 63) / 64 * 64), 0.0f);
    view_.head.out = reinterpret_cast<std::byte*>(found_.data());
    view_.head.scores = scored ? scores_.data() : nullptr;
    const size_t bytes = cpu::prompt_scratch_bytes(view_.head.head_size, view_.keys(), scored);
    std::vector<float> scratch(bytes / sizeof(float) + 16);
    auto* const at =
        reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    const int64_t each = (view_.rows() + pieces - 1) / pieces;
    for (int64_t row = 0; row < view_.rows(); row += each) {
      cpu::attend_prompt(view_, row, std::min(view_.rows(), row + each), at);
    }
    return found_;
  }
  const std::vector<float>& scores() const { return scores_; }

 private:
  // Moves keys and values that are not cached to the stride of the queries.
  void spread(const PromptCase& c) {
    const int64_t stride = c.group * c.size, tokens = view_.head.tokens;
    moved_.assign(static_cast<size_t>(2 * tokens * stride), NAN);
    for (int64_t row = 0; row < tokens; ++row) {
      std::copy_n(view_.head.k + row * c.size, c.size, moved_.data() + row * stride);
      std::copy_n(view_.head.v + row * c.size, c.size, moved_.data() + (tokens + row) * stride);
    }
    view_.head.k = moved_.data();
    view_.head.v = moved_.data() + tokens * stride;
    view_.head.stride = stride;
  }

  PromptRows rows_;
  cpu::PromptView view_;
  std::vector<float> queries_, moved_, found_, scores_;
};

// The largest error, as a part of the largest number that is wanted; NaN if there is one.
inline double worst(const std::vector<float>& found, const std::vector<float>& wanted) {
  double most = 0, off = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    most = std::max(most, std::abs(double{wanted[i]}));
    const double error = std::abs(double{found[i]} - double{wanted[i]});
    if (!(error <= off)) off = error;  // A NaN, too, which then stays
    if (std::isnan(off)) return off;
  }
  return off / most;
}

}  // namespace spillway::test
