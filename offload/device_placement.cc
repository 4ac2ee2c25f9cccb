// Placement over three tiers, for a device with memory of its own.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/io/io.h"
#include "offload/placement_parts.h"

namespace spillway {

namespace {

// A ring on the device holds a few micro-batches' cache at best, so that copies run while it
// computes: so many bytes, or one part of so many of its room.
constexpr uint64_t kDeviceRingBytesGood = uint64_t{1} << 30;
constexpr uint64_t kDeviceRingPart = 8;

// The KV cache, settled before the weights take what is left.
struct KvChoice {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t staging = 0, ring = 0;
};

class DevicePlacer {
 public:
  explicit DevicePlacer(const PlacementRequest& request)
      : r_(request),
        own_(*request.device),
        all_(request.table->weight_bytes()),
        longest_(request.kv_sequence_bytes_max),
        wanted_(std::max(request.kv_bytes_wanted, longest_)),
        layer_on_disk_(round_up(request.kv_layer_disk_bytes, kIoAlignment)),
        staged_layer_(
            round_up(std::max(request.kv_staged_bytes_max, layer_on_disk_), kIoAlignment)),
        device_room_(minus(own_.bytes, device_fixed())),
        host_room_(minus(request.memory_bytes, host_fixed())) {
    if (!r_.weights_disk_share) return;
    const auto all = static_cast<double>(all_);
    pinned_ =
        place_weights(*r_.table, static_cast<uint64_t>(std::llround(*r_.weights_disk_share * all)),
                      static_cast<uint64_t>(std::llround(own_.weights_host_share * all)));
  }

  Result<Placement> place() const {
    const std::vector<KvChoice> choices = r_.kv_disk_share ? with_shares() : without_shares();
    for (const KvChoice& choice : choices) {
      for (const bool deep : {true, false}) {
        if (auto placement = fit(choice, deep)) return std::move(*placement);
      }
    }
    if (host_fixed() > r_.memory_bytes) {
      PlacementRequest roomier = r_;
      roomier.memory_bytes = host_fixed();
      if (DevicePlacer(roomier).place().ok()) return host_too_small();
    }
    return infeasible(choices.back());
  }

 private:
  // What is taken whatever lives where.
  uint64_t device_fixed() const { return own_.process_bytes + own_.buffer_bytes; }
  uint64_t host_fixed() const { return r_.process_bytes + r_.buffer_bytes; }

  uint64_t ring_good() const {
    return std::max(kStagedLayers * staged_layer_,
                    std::min(kDeviceRingBytesGood, device_room_ / kDeviceRingPart));
  }

  uint64_t on_disk(double bytes) const { return kv_bytes_on_disk(r_, layer_on_disk_, bytes); }

  // The user says how much of the cache is where; what is left decides how large it is. Whole
  // layers are on one tier, so each needs one more than its share.
  std::vector<KvChoice> with_shares() const {
    const double disk = *r_.kv_disk_share, host = own_.kv_host_share;
    std::vector<KvChoice> found;
    for (uint64_t total = wanted_;; total = std::max(total / 2, longest_)) {
      for (const bool roomy : {true, false}) {
        const auto bytes = static_cast<double>(total);
        KvChoice choice;
        if (disk + host < 1) {
          choice.device = static_cast<uint64_t>((1 - disk - host) * bytes) + layer_on_disk_;
        }
        if (host > 0) choice.host = static_cast<uint64_t>(host * bytes) + layer_on_disk_;
        if (disk > 0) {
          choice.disk = on_disk(disk * bytes) + layer_on_disk_;
          choice.staging =
              roomy ? std::max(kStagedLayers * staged_layer_, kStagingBytesGood) : staged_layer_;
        }
        if (disk + host > 0) choice.ring = roomy ? ring_good() : staged_layer_;
        found.push_back(choice);
      }
      if (total == longest_) return found;
    }
  }

  // Best first: all of it on the device beside all the weights; what does not fit there in host
  // memory; and, where weights do not fit the device, all of it in host memory.
  std::vector<KvChoice> without_shares() const {
    std::vector<KvChoice> found;
    const uint64_t beside = minus(device_room_, pinned_ ? pinned_device_bytes() : all_);
    if (beside >= wanted_) found.push_back({.device = wanted_});
    const uint64_t host_left = minus(host_room_, host_weights());
    for (const uint64_t ring : {ring_good(), staged_layer_}) {
      const uint64_t device = minus(beside, ring);
      const uint64_t host = std::min(minus(wanted_, device), host_left);
      if (device >= longest_ && host > 0) {
        found.push_back({.device = device, .host = host, .ring = ring});
      }
    }
    if (beside >= longest_) found.push_back({.device = beside});
    for (uint64_t host = std::min(wanted_, host_left);; host = std::max(host / 2, longest_)) {
      host = std::max(host, longest_);
      for (const uint64_t ring : {ring_good(), staged_layer_}) {
        found.push_back({.host = host, .ring = ring});
      }
      if (host == longest_) break;
    }
    return found;
  }

  uint64_t pinned_device_bytes() const {
    return pinned_->memory_bytes + round_up(pinned_->to_device.ring_min(), kIoAlignment);
  }

  // What weights will take of host memory, as far as one can know before they are placed.
  uint64_t host_weights() const {
    if (pinned_) return pinned_->host_bytes;
    const uint64_t rest = minus(all_, device_room_);
    const auto most =
        static_cast<uint64_t>((1 - kKvShareWhenStreaming) * static_cast<double>(host_room_));
    return rest + longest_ > host_room_ ? most : rest;
  }

  static uint64_t ring(const StreamedBytes& streamed, bool deep) {
    return round_up(deep ? streamed.ring_good() : streamed.ring_min(), kIoAlignment);
  }

  std::optional<Placement> fit(const KvChoice& kv, bool deep) const {
    // Rooms end at 0: that may be less than nothing.
    if (device_fixed() > own_.bytes || host_fixed() > r_.memory_bytes) return std::nullopt;
    const uint64_t device_kv = kv.device + kv.ring, host_kv = kv.host + kv.staging;
    if (device_kv > device_room_ || host_kv > host_room_ || kv.disk > r_.disk_bytes) {
      return std::nullopt;
    }
    const auto on_device = [&](const WeightPlacement& w) {
      return w.memory_bytes + ring(w.to_device, deep) <= device_room_ - device_kv;
    };
    const auto on_host = [&](const WeightPlacement& w) {
      return w.host_bytes + ring(w.from_disk, deep) <= host_room_ - host_kv;
    };
    std::optional<WeightPlacement> weights;
    if (pinned_) {
      weights = pinned_;
      if (!on_device(*weights) || !on_host(*weights)) return std::nullopt;
    } else {
      weights = fewest_away(on_device, on_host);
      if (!weights) return std::nullopt;
    }
    if (kv.disk + (r_.weights_in_scratch ? weights->disk_bytes : 0) > r_.disk_free_bytes) {
      return std::nullopt;
    }
    return Placement{.weights = *weights,
                     .ring_bytes = ring(weights->from_disk, deep),
                     .kv_memory_bytes = kv.device,
                     .kv_disk_bytes = kv.disk,
                     .kv_staging_bytes = kv.staging,
                     .kv_host_bytes = kv.host,
                     .device_ring_bytes = ring(weights->to_device, deep),
                     .kv_ring_bytes = kv.ring};
  }

  // The fewest bytes off the device, and of these the fewest on disk, each to within a slab.
  template <class OnDevice, class OnHost>
  std::optional<WeightPlacement> fewest_away(const OnDevice& on_device,
                                             const OnHost& on_host) const {
    const auto away = least(
        0, all_, [&](uint64_t bytes) { return on_device(place_weights(*r_.table, 0, bytes)); });
    if (!away) return std::nullopt;
    // Two tiers' rounding may need a slab more than one's.
    for (const uint64_t more : {uint64_t{0}, kSlabBytesMax, 2 * kSlabBytesMax, all_ - *away}) {
      const uint64_t bytes = std::min(all_, *away + more);
      const auto placed = [&](uint64_t disk) {
        return place_weights(*r_.table, disk, bytes - disk);
      };
      const auto disk = least(0, bytes, [&](uint64_t d) { return on_host(placed(d)); });
      if (!disk) return std::nullopt;
      WeightPlacement found = placed(*disk);
      if (on_device(found)) return found;
    }
    return std::nullopt;
  }

  // The least number in [low, high] that fits, to within half a slab; none: not even `high` does.
  template <class Fits>
  static std::optional<uint64_t> least(uint64_t low, uint64_t high, const Fits& fits) {
    if (fits(low)) return low;
    if (!fits(high)) return std::nullopt;
    while (high - low > kSlabBytesMax / 2) {
      const uint64_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

  // With nothing in host memory but what must be there.
  Status host_too_small() const {
    return {Code::kInfeasible,
            "host memory is " + format_bytes(host_fixed() - r_.memory_bytes) + " short: buffers " +
                format_bytes(r_.buffer_bytes) + " and process " + format_bytes(r_.process_bytes) +
                " do not fit " + host_budget() +
                "; the smallest budget that fits is --host-memory " + mebibytes(host_fixed())};
  }
  std::string host_budget() const {
    return (r_.memory_from_flag ? "--host-memory " : "what is free, ") +
           format_bytes(r_.memory_bytes);
  }

  // Why not even the least fits: with all weights on disk, unless the user says where they are.
  Status infeasible(const KvChoice& kv) const {
    const WeightPlacement weights = pinned_ ? *pinned_ : place_weights(*r_.table, all_);
    const uint64_t device = device_fixed() + weights.memory_bytes + ring(weights.to_device, false) +
                            kv.device + kv.ring;
    if (device > own_.bytes) {
      return {Code::kInfeasible,
              "device memory is " + format_bytes(device - own_.bytes) + " short: weights " +
                  format_bytes(weights.memory_bytes + ring(weights.to_device, false)) +
                  (weights.to_device.total > 0 ? " (those of other tiers pass through)" : "") +
                  ", activations and buffers " + format_bytes(own_.buffer_bytes) + ", KV cache " +
                  format_bytes(kv.device + kv.ring) + " and driver " +
                  format_bytes(own_.process_bytes) + " do not fit " +
                  (own_.from_flag ? "--device-memory " : "what is free, ") +
                  format_bytes(own_.bytes) + "; the smallest budget that fits is --device-memory " +
                  mebibytes(device)};
    }
    const uint64_t host =
        host_fixed() + weights.host_bytes + ring(weights.from_disk, false) + kv.host + kv.staging;
    if (host > r_.memory_bytes) {
      return {Code::kInfeasible,
              "host memory is " + format_bytes(host - r_.memory_bytes) + " short: weights " +
                  format_bytes(weights.host_bytes + ring(weights.from_disk, false)) + ", buffers " +
                  format_bytes(r_.buffer_bytes) + ", KV cache " +
                  format_bytes(kv.host + kv.staging) + " and process " +
                  format_bytes(r_.process_bytes) + " do not fit " + host_budget() +
                  "; the smallest budget that fits is --host-memory " + mebibytes(host)};
    }
    const uint64_t scratch = kv.disk + (r_.weights_in_scratch ? weights.disk_bytes : 0);
    return {Code::kInfeasible, "scratch files need " + format_bytes(scratch) +
                                   " on disk and can have " +
                                   format_bytes(std::min(r_.disk_free_bytes, r_.disk_bytes)) +
                                   "; free some, name another --disk-dir, or raise --host-memory"};
  }

  const PlacementRequest& r_;
  const PlacementRequest::OwnMemory& own_;
  const uint64_t all_;               // Of weights
  const uint64_t longest_, wanted_;  // Of the KV cache: one sequence's, the block's
  const uint64_t layer_on_disk_, staged_layer_;
  const uint64_t device_room_, host_room_;  // For weights and KV cache
  std::optional<WeightPlacement> pinned_;   // Where the shares are fixed
};

}  // namespace

Result<Placement> place_on_device(const PlacementRequest& request) {
  return DevicePlacer(request).place();
}

}  // namespace spillway
