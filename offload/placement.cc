#include "offload/placement.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/io/io.h"
#include "offload/placement_parts.h"

namespace spillway {

namespace {

// What is settled before the weights take the memory that is left.
struct Choice {
  bool deep_ring = true;  // Two groups of weights in the ring, else one
  uint64_t kv_memory = 0;
  uint64_t kv_disk = 0;
  uint64_t kv_staging = 0;
};

class Placer {
 public:
  explicit Placer(const PlacementRequest& request)
      : r_(request),
        longest_(request.kv_sequence_bytes_max),
        wanted_(std::max(request.kv_bytes_wanted, longest_)),
        layer_on_disk_(round_up(request.kv_layer_disk_bytes, kIoAlignment)),
        staged_layer_(
            round_up(std::max(request.kv_staged_bytes_max, layer_on_disk_), kIoAlignment)),
        staging_(std::max(kStagedLayers * staged_layer_, kStagingBytesGood)),
        room_(minus(request.memory_bytes, request.process_bytes + request.buffer_bytes)) {
    if (!r_.weights_disk_share) return;
    const auto all = static_cast<double>(r_.table->weight_bytes());
    pinned_ =
        place_weights(*r_.table, static_cast<uint64_t>(std::llround(*r_.weights_disk_share * all)));
  }

  // Best first; the last needs the least.
  std::vector<Choice> choices() const {
    return r_.kv_disk_share ? with_share(*r_.kv_disk_share) : without_share();
  }

  // The placement with the fewest weight bytes on disk that leaves room for the choice.
  std::optional<Placement> fit(const Choice& choice) const {
    const uint64_t fixed = choice.kv_memory + choice.kv_staging;
    if (fixed > room_ || choice.kv_disk > r_.disk_bytes) return std::nullopt;
    // What memory cannot hold is on disk, wherever exactly it is cut.
    const uint64_t streamed = minus(r_.table->weight_bytes(), room_ - fixed);
    if (choice.kv_disk + (r_.weights_in_scratch ? streamed : 0) > r_.disk_free_bytes) {
      return std::nullopt;
    }
    const auto weights = fit_weights(room_ - fixed, choice.deep_ring);
    if (!weights || scratch_bytes(*weights, choice) > r_.disk_free_bytes) return std::nullopt;
    return Placement{.weights = *weights,
                     .ring_bytes = ring(*weights, choice.deep_ring),
                     .kv_memory_bytes = choice.kv_memory,
                     .kv_disk_bytes = choice.kv_disk,
                     .kv_staging_bytes = choice.kv_staging};
  }

  // Why not even `least` fits.
  Status infeasible(const Choice& least) const {
    const WeightPlacement weights =
        pinned_ ? *pinned_ : place_weights(*r_.table, r_.table->weight_bytes());
    const uint64_t weight_bytes = weights.memory_bytes + ring(weights, false);
    const uint64_t kv = least.kv_memory + least.kv_staging;
    const uint64_t needed = r_.process_bytes + r_.buffer_bytes + weight_bytes + kv;
    if (needed > r_.memory_bytes) return memory_short(weights, weight_bytes, kv, needed);
    if (const uint64_t scratch = scratch_bytes(weights, least); scratch > r_.disk_free_bytes) {
      return {Code::kInfeasible,
              "scratch files need " + format_bytes(scratch) + " on disk and can have " +
                  format_bytes(r_.disk_free_bytes) +
                  "; free some, name another --disk-dir, or raise --host-memory"};
    }
    return {Code::kInfeasible, "one sequence's share of the KV cache on disk needs --disk-memory " +
                                   mebibytes(least.kv_disk) + ", which is " +
                                   format_bytes(r_.disk_bytes) + "; raise it or --host-memory"};
  }

 private:
  // The user says how much of the cache is where; what is left decides how large it is.
  std::vector<Choice> with_share(double share) const {
    std::vector<Choice> found;
    for (uint64_t total = wanted_;; total = std::max(total - total / 8, longest_)) {
      for (const uint64_t staging : stagings()) {
        for (const bool deep : {true, false}) {
          found.push_back(split(share, total, staging));
          found.back().deep_ring = deep;
        }
      }
      if (total == longest_) return found;
    }
  }

  // Whole layers are on one tier, so each needs one more than its share; on disk they take whole
  // sectors.
  Choice split(double share, uint64_t total, uint64_t staging) const {
    const double disk = share * static_cast<double>(total);
    Choice choice;
    if (share < 1) {
      choice.kv_memory = total - static_cast<uint64_t>(disk) + layer_on_disk_;
    }
    if (share > 0) {
      choice.kv_disk = on_disk(disk) + layer_on_disk_;
      choice.kv_staging = staging;
    }
    return choice;
  }

  uint64_t on_disk(double bytes) const { return kv_bytes_on_disk(r_, layer_on_disk_, bytes); }

  std::vector<Choice> without_share() const {
    std::vector<Choice> found;
    for (const bool deep : {true, false}) {
      const uint64_t memory = std::min(wanted_, kv_room(deep));
      if (memory < longest_) continue;
      // Whole layers are on one tier: what is left of memory's last one is made up for.
      const bool more = streams() && memory < wanted_;
      const uint64_t rest =
          more ? std::min(on_disk(static_cast<double>(wanted_ - memory)) + layer_on_disk_,
                          r_.disk_bytes)
               : 0;
      if (rest > 0) found.push_back({deep, memory, rest, staging_});
      found.push_back({deep, memory, 0, 0});
    }
    for (const bool deep : {true, false}) found.push_back({deep, longest_, 0, 0});
    const uint64_t disk = std::max(split(1, longest_, 0).kv_disk,
                                   std::min(split(1, wanted_, 0).kv_disk, r_.disk_bytes));
    for (const uint64_t staging : stagings()) {
      for (const bool deep : {true, false}) found.push_back({deep, 0, disk, staging});
    }
    return found;
  }

  // Memory through which a cache on disk passes: the less, the less is read ahead, down to one
  // layer of one sequence, for which the engine stands still.
  std::vector<uint64_t> stagings() const {
    std::vector<uint64_t> found;
    for (uint64_t bytes = staging_; bytes > staged_layer_; bytes /= 2) {
      found.push_back(round_up(bytes, kIoAlignment));
    }
    found.push_back(staged_layer_);
    return found;
  }

  bool streams() const {
    return pinned_ ? pinned_->disk_bytes > 0 : r_.table->weight_bytes() + longest_ > room_;
  }

  // Memory for the cache: what fixed weights leave; half of all when the rest of the weights goes
  // to disk, so that a block is worth a pass over them; else what all weights leave.
  uint64_t kv_room(bool deep) const {
    if (pinned_) return minus(room_, pinned_->memory_bytes + ring(*pinned_, deep) + staging_);
    if (streams()) {
      return static_cast<uint64_t>(kKvShareWhenStreaming * static_cast<double>(room_));
    }
    return minus(room_, r_.table->weight_bytes());
  }

  static uint64_t ring(const WeightPlacement& weights, bool deep) {
    return round_up(deep ? weights.ring_bytes_good() : weights.ring_bytes_min(), kIoAlignment);
  }

  uint64_t scratch_bytes(const WeightPlacement& weights, const Choice& choice) const {
    return choice.kv_disk + (r_.weights_in_scratch ? weights.disk_bytes : 0);
  }

  std::optional<WeightPlacement> fit_weights(uint64_t room, bool deep) const {
    const auto fits = [&](const WeightPlacement& w) {
      return w.memory_bytes + ring(w, deep) <= room;
    };
    if (pinned_) return fits(*pinned_) ? pinned_ : std::nullopt;
    if (WeightPlacement none = place_weights(*r_.table, 0); fits(none)) return none;
    // Memory falls as bytes move to disk, but for the last slab: search to within one.
    uint64_t low = 0, high = r_.table->weight_bytes();
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

  Status memory_short(const WeightPlacement& weights, uint64_t weight_bytes, uint64_t kv,
                      uint64_t needed) const {
    const std::string all = format_bytes(r_.table->weight_bytes());
    return {Code::kInfeasible,
            "host memory is " + format_bytes(needed - r_.memory_bytes) + " short: weights " +
                format_bytes(weight_bytes) +
                (weights.disk_bytes > 0 ? " (of " + all + ", the rest on disk)" : "") +
                ", activations and buffers " + format_bytes(r_.buffer_bytes) + ", KV cache " +
                format_bytes(kv) + " and process " + format_bytes(r_.process_bytes) +
                " do not fit " + (r_.memory_from_flag ? "--host-memory " : "what is free, ") +
                format_bytes(r_.memory_bytes) +
                "; the smallest budget that fits is --host-memory " + mebibytes(needed)};
  }

  const PlacementRequest& r_;
  const uint64_t longest_, wanted_;  // Of the KV cache: one sequence's, the block's
  const uint64_t layer_on_disk_, staged_layer_, staging_;
  const uint64_t room_;                    // For weights and KV cache
  std::optional<WeightPlacement> pinned_;  // Where their share on disk is fixed
};

}  // namespace

Result<Placement> place(const PlacementRequest& request) {
  if (request.device) return place_on_device(request);
  const Placer placer(request);
  const std::vector<Choice> choices = placer.choices();
  // Of one share the last takes the least of every tier: what does not fit is known at once.
  if (request.kv_disk_share && !placer.fit(choices.back())) {
    return placer.infeasible(choices.back());
  }
  for (const Choice& choice : choices) {
    if (std::optional<Placement> placement = placer.fit(choice)) return std::move(*placement);
  }
  return placer.infeasible(choices.back());
}

}  // namespace spillway
