// Samples an index from each row, on the device that holds the logits: four bytes per row cross the
// link instead of all logits. Greedy is comparisons alone, so the index is the host's; sampling by
// weights follows the same rule (kernels/sampling/sample.h) with sums in another order, so the
// index may be a neighbour's where `uniform` falls within rounding of the border between two
// weights.
//
// One block per row. A warp owns a part of the row, a lane every 32nd number of it: the result does
// not depend on other rows, and all sums are added in one order.
#include <algorithm>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernel.h"

namespace spillway::cuda {

namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kWarps = kThreads / kWarp;

struct Best {
  float value;
  int32_t index;  // -1: none yet, and the value is -inf

  __device__ void take(float other, int32_t at) {
    const bool higher = other > value || (other == value && at >= 0 && (index < 0 || at < index));
    if (!higher) return;
    value = other;
    index = at;
  }
};

// The best of all lanes, returned to every lane.
__device__ Best warp_best(Best best) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
    const int32_t index = __shfl_xor_sync(0xffffffffu, best.index, step);
    best.take(value, index);
  }
  return best;
}

__device__ double sum_of_warp(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// An unsigned number that orders as the float does, and its inverse.
__device__ uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float value_of_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

struct Shared {
  float values[kWarps];
  int32_t indices[kWarps];
  double sums[kWarps];
  int32_t index;
};

// Operations of a block's threads on their row. All threads make each call, and get the same
// result.
class Row {
 public:
  __device__ Row(float* numbers, int32_t count, Shared* shared)
      : numbers_(numbers),
        shared_(shared),
        lane_(static_cast<int32_t>(threadIdx.x % kWarp)),
        warp_(threadIdx.x / kWarp) {
    const int32_t part = (count + static_cast<int32_t>(kThreads) - 1) /
                         static_cast<int32_t>(kThreads) * static_cast<int32_t>(kWarp);
    begin_ = static_cast<int32_t>(warp_) * part;
    end_ = begin_ + part < count ? begin_ + part : count;
  }

  // Index -1: a number is NaN or +inf, or none is above -inf. Called once per kernel: nothing else
  // writes its shared result, so no barrier protects threads that still read it.
  __device__ Best best() {
    Best best{-INFINITY, -1};
    bool invalid = false;
    for (int32_t i = begin_ + lane_; i < end_; i += kWarp) {
      invalid = invalid || !(numbers_[i] < INFINITY);
      if (numbers_[i] > best.value) best = {numbers_[i], i};
    }
    best = warp_best(best);
    const bool any = __any_sync(0xffffffffu, invalid);
    if (lane_ == 0) {
      shared_->values[warp_] = best.value;
      shared_->indices[warp_] = any ? -2 : best.index;
    }
    __syncthreads();
    best = {-INFINITY, -1};
    bool valid = true;
    for (unsigned w = 0; w < kWarps; ++w) {
      valid = valid && shared_->indices[w] != -2;
      best.take(shared_->values[w], shared_->indices[w]);
    }
    return valid ? best : Best{-INFINITY, -1};
  }

  // numbers[i] = change(i, numbers[i]). A thread alone reads the numbers that it writes.
  template <class Change>
  __device__ void change(Change change) {
    for (int32_t i = begin_ + lane_; i < end_; i += kWarp) numbers_[i] = change(i, numbers_[i]);
  }

  // Sum of value(number).
  template <class Value>
  __device__ double sum(Value value) {
    add_parts(value);
    double total = 0;
    for (unsigned w = 0; w < kWarps; ++w) total += shared_->sums[w];
    __syncthreads();
    return total;
  }

  // The first index at which the values, none negative, make more than `amount`; if rounding leaves
  // none, the last that is not 0; -1 when all are 0.
  template <class Value>
  __device__ int32_t index_at(Value value, double amount) {
    add_parts(value);
    unsigned owner = kWarps;
    bool inside = false;
    for (unsigned w = 0; w < kWarps && !inside; ++w) {
      if (shared_->sums[w] == 0) continue;
      owner = w;
      inside = amount < shared_->sums[w];
      if (!inside) amount -= shared_->sums[w];
    }
    if (threadIdx.x == 0) shared_->index = -1;
    __syncthreads();
    if (warp_ == owner) {
      const int32_t found = index_in_part(value, inside ? amount : INFINITY);
      if (lane_ == 0) shared_->index = found;
    }
    __syncthreads();
    return shared_->index;  // The next call writes it after its first barrier.
  }

  // The highest float from `low` to `high` that reaches its goal; `low` if none does.
  template <class Reaches>
  __device__ float highest_that(float low, float high, Reaches reaches) {
    uint32_t yes = order_key(low), no = order_key(high) + 1;
    while (no - yes > 1) {
      const uint32_t middle = yes + (no - yes) / 2;
      if (reaches(value_of_key(middle))) {
        yes = middle;
      } else {
        no = middle;
      }
    }
    return value_of_key(yes);
  }

 private:
  // Shares the sum of each warp's part with all threads.
  template <class Value>
  __device__ void add_parts(Value value) {
    float mine = 0;
    for (int32_t i = begin_ + lane_; i < end_; i += kWarp) mine += value(numbers_[i]);
    const double part = sum_of_warp(mine);
    if (lane_ == 0) shared_->sums[warp_] = part;
    __syncthreads();
  }

  // index_at() within one part, called by its warp.
  template <class Value>
  __device__ int32_t index_in_part(Value value, double amount) {
    int32_t last = -1;
    for (int32_t tile = begin_; tile < end_; tile += kWarp) {
      const int32_t i = tile + lane_;
      const float mine = i < end_ ? value(numbers_[i]) : 0.0f;
      double up_to_here = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        const float other = __shfl_sync(0xffffffffu, mine, lane);
        if (lane <= lane_) up_to_here += other;
      }
      const unsigned some = __ballot_sync(0xffffffffu, mine > 0);
      const unsigned beyond = __ballot_sync(0xffffffffu, mine > 0 && up_to_here > amount);
      if (beyond != 0) return tile + __ffs(static_cast<int>(beyond)) - 1;
      if (some != 0) last = tile + kWarp - 1 - __clz(static_cast<int>(some));
      amount -= __shfl_sync(0xffffffffu, up_to_here, kWarp - 1);
    }
    return last;
  }

  float* numbers_;
  Shared* shared_;
  int32_t lane_;
  unsigned warp_;
  int32_t begin_, end_;
};

// Drops the weights outside the heaviest that have top_p of the sum; of equal ones the first stay.
__device__ void keep_top_p(Row& row, const SampleRule& rule) {
  const auto sum_from = [&](float floor) {
    return row.sum([=](float weight) { return weight >= floor ? weight : 0.0f; });
  };
  const double sum = sum_from(0);
  const double wanted = static_cast<double>(rule.top_p) * sum;
  const auto low =
      static_cast<float>((sum - wanted) / rule.count / 2);  // As kernels/sampling/sample.cc says
  const float threshold =
      row.highest_that(low, 1.0f, [&](float floor) { return sum_from(floor) >= wanted; });
  const double above = row.sum([=](float weight) { return weight > threshold ? weight : 0.0f; });
  int32_t last = -1;  // Last kept of those equal to the threshold
  if (above < wanted) {
    const double ties = ceil((wanted - above) / static_cast<double>(threshold));
    last = row.index_at([=](float weight) { return weight == threshold ? 1.0f : 0.0f; }, ties - 1);
  }
  row.change([=](int32_t i, float weight) {
    return weight > threshold || (weight == threshold && i <= last) ? weight : 0.0f;
  });
}

__device__ int32_t sample_by_weight(Row& row, const SampleRule& rule, float best) {
  float lowest = -INFINITY;
  if (rule.top_k > 0 && rule.top_k < rule.count) {
    lowest = row.highest_that(-INFINITY, best, [&](float floor) {
      return row.sum([=](float number) { return number >= floor ? 1.0f : 0.0f; }) >= rule.top_k;
    });
  }
  row.change([=](int32_t, float number) {
    // Divided as on the host: a tiny temperature gives 0 and -inf, never NaN.
    const float weight = number < lowest ? 0.0f : expf((number - best) / rule.temperature);
    return weight < rule.min_p ? 0.0f : weight;
  });
  if (rule.top_p < 1.0f) keep_top_p(row, rule);
  const auto itself = [](float weight) { return weight; };
  const double sum = row.sum(itself);
  return row.index_at(itself, rule.uniform * sum);
}

__global__ void sample_kernel(float* in, int64_t stride, const SampleRule* rules, int32_t* out) {
  __shared__ Shared shared;
  const SampleRule rule = rules[blockIdx.x];
  Row row(in + blockIdx.x * stride, rule.count, &shared);
  const Best best = row.best();
  int32_t index = best.index;
  if (index >= 0 && rule.temperature != 0) index = sample_by_weight(row, rule, best.value);
  if (threadIdx.x == 0) out[blockIdx.x] = index;
}

}  // namespace

void run(CudaContext& context, const SampleArgs& args) {
  if (args.in.rows == 0 || !context.ready()) return;
  constexpr size_t kEach = CudaContext::kUploadCount<SampleRule>;
  for (size_t first = 0; first < args.rules.size(); first += kEach) {
    const auto part = args.rules.subspan(first, std::min(kEach, args.rules.size() - first));
    const SampleRule* rules = context.upload(part);
    if (!context.status().ok()) return;
    auto* in = reinterpret_cast<float*>(args.in.row(static_cast<int64_t>(first)));
    launch(context.stream(), {dim3(static_cast<unsigned>(part.size())), dim3(kThreads)},
           sample_kernel, in, args.in.stride, rules, args.out + first);
  }
  context.check_launch("the index drawn from each row");
}

}  // namespace spillway::cuda
