#include "offload/placement.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/io.h"

namespace spillway {

namespace {

// Of memory that weights and KV cache share when the weights do not fit: a block grows with the
// cache while a sweep costs what is left of the weights.
constexpr double kKvShareWhenStreaming = 0.5;

// Layers of the longest sequence that the KV ring holds: one in use, some on their way.
constexpr uint64_t kStagedLayers = 4;
constexpr uint64_t kStagingBytesGood = uint64_t{256} << 20;

uint64_t minus(uint64_t a, uint64_t b) {
  return a - std::min(a, b);
}

// How much of memory each choice takes, best choice first.
struct Choice {
  bool deep_ring = true;   // Two groups of weights in the ring, else one
  uint64_t kv_memory = 0;  // At least
  uint64_t kv_disk = 0;
  uint64_t kv_staging = 0;
};

class Placer {
 public:
  explicit Placer(const PlacementRequest& request) : r_(request) {}

  // The placement with the fewest weight bytes on disk that leaves room for the choice.
  std::optional<Placement> fit(const Choice& choice) const {
    const uint64_t fixed =
        r_.process_bytes + r_.buffer_bytes + choice.kv_memory + choice.kv_staging;
    if (fixed > r_.memory_bytes || choice.kv_disk > r_.disk_bytes) return std::nullopt;
    const uint64_t room = r_.memory_bytes - fixed;
    const auto weights = fit_weights(room, choice.deep_ring);
    if (!weights) return std::nullopt;
    const uint64_t scratch = choice.kv_disk + (r_.weights_in_scratch ? weights->disk_bytes : 0);
    if (scratch > r_.disk_free_bytes) return std::nullopt;
    return Placement{*weights, ring(*weights, choice.deep_ring), choice.kv_memory, choice.kv_disk,
                     choice.kv_staging};
  }

  // Memory of weights whose share on disk is fixed.
  uint64_t pinned_bytes(bool deep) const {
    const WeightPlacement fixed = place_weights(*r_.table, pinned_target());
    return fixed.memory_bytes + ring(fixed, deep);
  }

 private:
  uint64_t pinned_target() const {
    return static_cast<uint64_t>(
        std::llround(*r_.weights_disk_share * static_cast<double>(r_.table->weight_bytes())));
  }

  static uint64_t ring(const WeightPlacement& weights, bool deep) {
    return round_up(deep ? weights.ring_bytes_good() : weights.ring_bytes_min(), kIoAlignment);
  }

  std::optional<WeightPlacement> fit_weights(uint64_t room, bool deep) const {
    const uint64_t all = r_.table->weight_bytes();
    const auto fits = [&](const WeightPlacement& w) {
      return w.memory_bytes + ring(w, deep) <= room;
    };
    if (r_.weights_disk_share) {
      WeightPlacement fixed = place_weights(*r_.table, pinned_target());
      return fits(fixed) ? std::optional(std::move(fixed)) : std::nullopt;
    }
    if (WeightPlacement none = place_weights(*r_.table, 0); fits(none)) return none;
    // Memory falls as bytes move to disk, but for the last slab: search to within one.
    uint64_t low = 0, high = all;
    WeightPlacement best = place_weights(*r_.table, high);
    if (!fits(best)) return std::nullopt;
    while (high - low > kSlabBytesMax / 2) {
      const uint64_t middle = low + (high - low) / 2;
      WeightPlacement tried = place_weights(*r_.table, middle);
      if (fits(tried)) {
        best = std::move(tried);
        high = middle;
      } else {
        low = middle;
      }
    }
    return best;
  }

  const PlacementRequest& r_;
};

Status infeasible(const PlacementRequest& request, const Choice& smallest) {
  const WeightPlacement weights =
      request.weights_disk_share
          ? place_weights(*request.table,
                          static_cast<uint64_t>(*request.weights_disk_share *
                                                static_cast<double>(request.table->weight_bytes())))
          : place_weights(*request.table, request.table->weight_bytes());
  const uint64_t weight_bytes = weights.memory_bytes + weights.ring_bytes_min();
  const uint64_t kv = smallest.kv_memory + smallest.kv_staging;
  const uint64_t needed = request.process_bytes + request.buffer_bytes + weight_bytes + kv;
  if (needed <= request.memory_bytes) {
    const uint64_t scratch =
        smallest.kv_disk + (request.weights_in_scratch ? weights.disk_bytes : 0);
    if (scratch > request.disk_free_bytes) {
      return {Code::kInfeasible,
              "scratch files need " + format_bytes(scratch) + " on disk and can have " +
                  format_bytes(request.disk_free_bytes) +
                  "; free some, name another --disk-dir, or raise --host-memory"};
    }
    return {Code::kInfeasible, "one sequence's share of the KV cache on disk needs --disk-memory " +
                                   std::to_string((smallest.kv_disk >> 20) + 1) + "MiB, which is " +
                                   format_bytes(request.disk_bytes) +
                                   "; raise it or --host-memory"};
  }
  return {Code::kInfeasible,
          "host memory is " + format_bytes(needed - request.memory_bytes) + " short: weights " +
              format_bytes(weight_bytes) +
              (weights.disk_bytes > 0
                   ? " (of " + format_bytes(request.table->weight_bytes()) + ", the rest on disk)"
                   : std::string()) +
              ", activations and buffers " + format_bytes(request.buffer_bytes) + ", KV cache " +
              format_bytes(kv) + " and process " + format_bytes(request.process_bytes) +
              " do not fit " + (request.memory_from_flag ? "--host-memory " : "what is free, ") +
              format_bytes(request.memory_bytes) +
              "; the smallest budget that fits is --host-memory " +
              std::to_string((needed >> 20) + 1) + "MiB"};
}

}  // namespace

Result<Placement> place(const PlacementRequest& request) {
  const Placer placer(request);
  const uint64_t longest = request.kv_sequence_bytes_max;
  const uint64_t wanted = std::max(request.kv_bytes_wanted, longest);
  const uint64_t staging_min = round_up(request.kv_layer_bytes_max, kIoAlignment);
  const uint64_t staging = std::max(kStagedLayers * staging_min, kStagingBytesGood);
  // Whole layers are on one tier: each needs a little more than its share.
  // On disk a layer takes whole sectors.
  const double sectors = static_cast<double>(staging_min) /
                         static_cast<double>(std::max<uint64_t>(1, request.kv_layer_bytes_max));
  const auto split = [&](double share, uint64_t total, uint64_t staged) {
    const double disk = share * static_cast<double>(total);
    return Choice{
        .kv_memory =
            share == 1 ? 0 : total - static_cast<uint64_t>(disk) + request.kv_layer_bytes_max,
        .kv_disk = share == 0 ? 0 : static_cast<uint64_t>(disk * sectors) + staging_min,
        .kv_staging = share == 0 ? 0 : staged};
  };
  const uint64_t room = minus(request.memory_bytes, request.process_bytes + request.buffer_bytes);
  std::vector<Choice> choices;
  if (request.kv_disk_share) {
    // The user says how much of the cache is where; the memory left decides how large it is.
    const double share = *request.kv_disk_share;
    for (uint64_t total = wanted;; total = std::max(total / 2, longest)) {
      for (const uint64_t staged : {staging, staging_min}) {
        for (const bool deep : {true, false}) {
          choices.push_back(split(share, total, staged));
          choices.back().deep_ring = deep;
        }
      }
      if (total == longest) break;
    }
  } else {
    const uint64_t weights = request.table->weight_bytes();
    const double pinned = request.weights_disk_share.value_or(0);
    const bool streams = request.weights_disk_share ? pinned > 0 : weights + longest > room;
    for (const bool deep : {true, false}) {
      // In memory: all that the weights leave. Streaming: half of it, so that a block is worth a
      // pass over the weights; what the block wants beyond goes to disk.
      uint64_t most = minus(room, weights);
      if (streams) most = static_cast<uint64_t>(kKvShareWhenStreaming * static_cast<double>(room));
      if (pinned > 0) most = minus(room, placer.pinned_bytes(deep));
      const uint64_t memory = std::min(wanted, minus(most, pinned > 0 ? staging : 0));
      if (memory < longest) continue;
      const uint64_t rest = std::min(streams ? wanted - memory : 0, request.disk_bytes);
      if (rest > 0) {
        choices.push_back(
            {.deep_ring = deep, .kv_memory = memory, .kv_disk = rest, .kv_staging = staging});
      }
      choices.push_back({.deep_ring = deep, .kv_memory = memory});
    }
    for (const bool deep : {true, false}) {
      choices.push_back({.deep_ring = deep, .kv_memory = longest});
    }
    for (const uint64_t staged : {staging, staging_min}) {
      for (const bool deep : {true, false}) {
        choices.push_back({.deep_ring = deep,
                           .kv_disk = std::max(split(1, longest, 0).kv_disk,
                                               std::min(wanted, request.disk_bytes)),
                           .kv_staging = staged});
      }
    }
  }
  for (const Choice& choice : choices) {
    if (std::optional<Placement> placement = placer.fit(choice)) return std::move(*placement);
  }
  return infeasible(request, choices.back());
}

}  // namespace spillway
