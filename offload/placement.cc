#include "offload/placement.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/checked_math.h"
#include "kernels/base/units.h"
#include "offload/io/io.h"

namespace spillway {

namespace {

// The KV cache's share of the memory for weights and cache when the weights do not fit: the block
// grows with the cache, while a sweep costs the time of streaming the other weights. A default
// heuristic for plans without a search.
constexpr double kKvShareWhenStreaming = 0.5;

// Layers of the longest sequence that a KV ring holds: one in use, the others being transferred.
constexpr uint64_t kStagedLayers = 4;
constexpr uint64_t kStagingBytesGood = uint64_t{256} << 20;

// A ring on a discrete device holds a few micro-batches' cache at best, so that copies run while it
// computes: this many bytes, or one part in eight of the memory that weights and cache share.
constexpr uint64_t kDeviceRingBytesGood = uint64_t{1} << 30;
constexpr uint64_t kDeviceRingPart = 8;

// Steps of the sizes tried where the user fixed the shares: the fraction by which a cache that does
// not fit is made smaller, and the number of ring sizes, each half of the last, before the
// smallest. Rings of host memory on a CPU compete with the KV cache, which the block needs most; on
// a discrete device they are a small part of either memory.
struct SearchSteps {
  uint64_t kv_part;
  size_t larger_rings;
};
constexpr SearchSteps kCpuSteps{8, 64}, kDiscreteSteps{2, 1};

// a - b, saturated at 0.
uint64_t minus(uint64_t a, uint64_t b) {
  return a - std::min(a, b);
}

// The bytes in a flag's syntax, rounded up.
std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes >> 20) + 1) + "MiB";
}

uint64_t bytes_of_share(double share, uint64_t all) {
  return static_cast<uint64_t>(std::llround(share * static_cast<double>(all)));
}

// Ring size for streamed weights: one group, or (`deep`) the next one as well.
uint64_t weight_ring(const StreamedBytes& streamed, bool deep) {
  return round_up(deep ? streamed.ring_good() : streamed.ring_min(), kIoAlignment);
}

// Bytes that a placement takes of each budget, by purpose.
struct Taken {
  TierBytes process, buffers, weights, kv;
  TierBytes resident;  // Weights by the tier they live on, without rings
};

Taken taken_by(const PlacementRequest& request, const Placement& placement) {
  // A device that is not discrete takes host memory.
  const auto in_memory = [&](uint64_t device, uint64_t host) {
    return request.discrete ? TierBytes{device, host, 0} : TierBytes{0, device + host, 0};
  };
  const WeightPlacement& weights = placement.weights;
  Taken taken{in_memory(request.device.process_bytes, request.host.process_bytes),
              in_memory(request.device.buffer_bytes, request.host.buffer_bytes),
              in_memory(weights.memory_bytes + placement.device_rings.weights,
                        weights.host_bytes + placement.host_rings.weights),
              in_memory(placement.kv.device + placement.device_rings.kv,
                        placement.kv.host + placement.host_rings.kv),
              in_memory(weights.memory_bytes, weights.host_bytes)};
  taken.weights.disk = request.weights_in_scratch ? weights.disk_bytes : 0;
  taken.kv.disk = placement.kv.disk;
  taken.resident.disk = weights.disk_bytes;
  return taken;
}

// The words for a memory in messages.
struct MemoryText {
  uint64_t TierBytes::*tier;
  const char *name, *flag, *process;
};
constexpr MemoryText kDeviceText{&TierBytes::device, "device memory", "--device-memory", "driver"};
constexpr MemoryText kHostText{&TierBytes::host, "host memory", "--host-memory", "process"};

// "a, b and c".
std::string listed(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < parts.size() ? ", " : " and ") + parts[i];
  }
  return text;
}

// Text on the weights that live outside of this memory.
std::string rest_of_weights(const MemoryText& text, const TierBytes& resident) {
  std::vector<std::string> places;
  const auto add = [&](uint64_t TierBytes::*tier, const char* place) {
    if (tier != text.tier && resident.*tier > 0) places.push_back(place);
  };
  add(&TierBytes::device, "on the device");
  add(&TierBytes::host, "in host memory");
  add(&TierBytes::disk, "on disk");
  if (places.empty()) return "";
  return " (of " + format_bytes(resident.sum()) + ", the rest " + listed(places) + ")";
}

// The error that a memory's budget is exceeded, with the bytes by purpose.
Status memory_short(const MemoryText& text, const MemoryTier& memory, const Taken& taken) {
  std::vector<std::string> parts;
  uint64_t needed = 0;
  const auto add = [&](const char* what, const TierBytes& bytes, const std::string& note) {
    const uint64_t here = bytes.*text.tier;
    needed += here;
    if (here > 0) parts.push_back(what + (" " + format_bytes(here)) + note);
  };
  add("weights", taken.weights, rest_of_weights(text, taken.resident));
  add("activations and buffers", taken.buffers, "");
  add("KV cache", taken.kv, "");
  add(text.process, taken.process, "");
  return {Code::kInfeasible,
          std::string(text.name) + " is " + format_bytes(minus(needed, memory.budget_bytes)) +
              " short: " + listed(parts) + (parts.size() == 1 ? " does" : " do") + " not fit " +
              (memory.divided.ranks > 1 ? "the rank's share of " : "") +
              (memory.from_flag ? std::string(text.flag) + " " : "what is free, ") +
              format_bytes(memory.divided.whole_of(memory.budget_bytes)) +
              "; the smallest budget that fits is " + text.flag + " " +
              mebibytes(memory.divided.whole_of(needed))};
}

// Sizes of the KV cache's staging rings.
struct KvRings {
  uint64_t host = 0, device = 0;
};

// A KV placement, chosen before the weights take the remaining memory.
struct Choice {
  TierBytes kv;
  KvRings rings{};
  bool deep = true;  // Two groups of weights in their rings, else one
};

class Placer {
 public:
  explicit Placer(const PlacementRequest& request)
      : r_(request),
        weights_(*request.table, request.layers),
        all_(weights_.weight_bytes()),
        longest_(request.kv_sequence_bytes_max),
        wanted_(std::max(request.kv_bytes_wanted, longest_)),
        layer_on_disk_(round_up(request.kv_layer_disk_bytes, kIoAlignment)),
        staged_layer_(
            round_up(std::max(request.kv_staged_bytes_max, layer_on_disk_), kIoAlignment)) {
    const TierBytes fixed = Placement().taken(r_);
    const auto largest = [&](uint64_t enough) {
      return std::max(kStagedLayers * staged_layer_, enough);
    };
    host_room_ = minus(r_.host.budget_bytes, fixed.host);
    device_room_ = host_room_;
    least_rings_.host = staged_layer_;
    good_rings_.host = largest(std::max(kStagingBytesGood, r_.kv_ring_bytes_good));
    if (r_.discrete) {
      steps_ = kDiscreteSteps;
      device_room_ = minus(r_.device.budget_bytes, fixed.device);
      least_rings_.device = staged_layer_;
      good_rings_.device = largest(std::min(kDeviceRingBytesGood, device_room_ / kDeviceRingPart));
    }
    if (!r_.weights_shares) return;
    pinned_ = weights_.place(bytes_of_share(r_.weights_shares->disk, all_),
                             bytes_of_share(r_.weights_shares->host, all_));
  }

  Result<Placement> place() const {
    const std::vector<Choice> choices = r_.kv_shares  ? with_shares(*r_.kv_shares)
                                        : r_.discrete ? host_after_device()
                                                      : disk_after_memory();
    // With given shares the last choice takes the least of every tier: if it does not fit, none
    // does.
    if (!r_.kv_shares || fit(choices.back())) {
      for (const Choice& choice : choices) {
        if (std::optional<Placement> placement = fit(choice)) return std::move(*placement);
      }
    }
    if (const Placement nothing; !fits_host(nothing)) {
      PlacementRequest roomier = r_;
      roomier.host.budget_bytes = nothing.taken(r_).host;
      // If this fits, the fixed parts of host memory alone exceed its budget.
      if (Placer(roomier).place().ok()) {
        return memory_short(kHostText, r_.host, taken_by(r_, nothing));
      }
    }
    return infeasible(choices.back());
  }

 private:
  // Choices for KV shares that the user fixed; the remaining memory decides the cache's size. A
  // layer lives wholly on one tier, so each tier needs one layer more than its share; on disk
  // layers take whole sectors.
  std::vector<Choice> with_shares(const PlacementRequest::Shares& shares) const {
    std::vector<Choice> found;
    std::vector<KvRings> sizes = ring_sizes();
    if (shares.away() <= 0) sizes.resize(1);
    for (uint64_t total = wanted_;; total = std::max(total - total / steps_.kv_part, longest_)) {
      for (const KvRings& rings : sizes) {
        const auto bytes = static_cast<double>(total);
        Choice choice;
        if (shares.away() < 1) {
          // The two kinds of device round differently; one rounding would change plans by a byte.
          choice.kv.device =
              layer_on_disk_ + (r_.discrete
                                    ? static_cast<uint64_t>((1 - shares.disk - shares.host) * bytes)
                                    : total - static_cast<uint64_t>(shares.disk * bytes));
        }
        if (shares.host > 0) {
          choice.kv.host = static_cast<uint64_t>(shares.host * bytes) + layer_on_disk_;
        }
        if (shares.disk > 0) {
          choice.kv.disk = on_disk(shares.disk * bytes);
          choice.rings.host = rings.host;
        }
        if (shares.away() > 0) choice.rings.device = rings.device;
        add(choice, &found);
      }
      if (total == longest_) return found;
    }
  }

  // Choices for a discrete device without KV shares, best first: all of the cache beside all the
  // weights; the excess of that in host memory; and, where weights do not fit the device, all of
  // the cache in host memory.
  std::vector<Choice> host_after_device() const {
    std::vector<Choice> found;
    const uint64_t beside =
        pinned_ ? beside_pinned(weight_ring(pinned_->to_device, false)) : minus(device_room_, all_);
    if (beside >= wanted_) add({.kv = {.device = wanted_}}, &found);
    const uint64_t host_left = minus(host_room_, host_weights());
    const auto rings = {good_rings_.device, least_rings_.device};
    for (const uint64_t ring : rings) {
      const uint64_t device = minus(beside, ring);
      const uint64_t host = std::min(minus(wanted_, device), host_left);
      if (device >= longest_ && host > 0) {
        add({.kv = {.device = device, .host = host}, .rings = {0, ring}}, &found);
      }
    }
    if (beside >= longest_) add({.kv = {.device = beside}}, &found);
    for (uint64_t host = std::min(wanted_, host_left);; host /= 2) {
      host = std::max(host, longest_);
      for (const uint64_t ring : rings) add({.kv = {.host = host}, .rings = {0, ring}}, &found);
      if (host == longest_) return found;
    }
  }

  // The host memory that weights will take, as far as known before they are placed.
  uint64_t host_weights() const {
    if (pinned_) return pinned_->host_bytes;
    const uint64_t rest = minus(all_, device_room_);
    const auto most =
        static_cast<uint64_t>((1 - kKvShareWhenStreaming) * static_cast<double>(host_room_));
    return rest + longest_ > host_room_ ? most : rest;
  }

  // Choices for a CPU without KV shares, best first: as much as fits in memory, with the excess on
  // disk only if weights are read from there in each sweep anyway; one sequence in memory; all of
  // the cache on disk.
  std::vector<Choice> disk_after_memory() const {
    std::vector<Choice> found;
    const bool streams = pinned_ ? pinned_->disk_bytes > 0 : all_ + longest_ > device_room_;
    for (const bool deep : {true, false}) {
      const uint64_t memory = std::min(wanted_, kv_room(streams, deep));
      if (memory < longest_) continue;
      // A layer lives wholly on one tier: the disk makes up for memory's unused part of a layer.
      if (streams && memory < wanted_) {
        const uint64_t rest =
            std::min(on_disk(static_cast<double>(wanted_ - memory)), r_.disk_bytes);
        if (rest > 0) {
          found.push_back({{.device = memory, .disk = rest}, {good_rings_.host, 0}, deep});
        }
      }
      found.push_back({{.device = memory}, {}, deep});
    }
    add({.kv = {.device = longest_}}, &found);
    const uint64_t disk = std::max(on_disk(static_cast<double>(longest_)),
                                   std::min(on_disk(static_cast<double>(wanted_)), r_.disk_bytes));
    for (const KvRings& rings : ring_sizes()) add({.kv = {.disk = disk}, .rings = rings}, &found);
    return found;
  }

  // Memory for the cache on a CPU: the memory that fixed weights leave; half of all when the other
  // weights go to disk, so that a block is worth a pass over them; else the memory that all weights
  // leave.
  uint64_t kv_room(bool streams, bool deep) const {
    if (pinned_) {
      return beside_pinned(weight_ring(pinned_->from_disk, deep) + good_rings_.host);
    }
    if (!streams) return minus(device_room_, all_);
    return static_cast<uint64_t>(kKvShareWhenStreaming * static_cast<double>(device_room_));
  }

  // Device memory that fixed weights and `rings` leave.
  uint64_t beside_pinned(uint64_t rings) const {
    return minus(device_room_, pinned_->memory_bytes + rings);
  }

  static void add(Choice choice, std::vector<Choice>* found) {
    for (const bool deep : {true, false}) {
      choice.deep = deep;
      found->push_back(choice);
    }
  }

  // Disk bytes for this many bytes of KV cache as in memory, and one layer more.
  uint64_t on_disk(double bytes) const {
    const auto longest = static_cast<double>(std::max<uint64_t>(1, longest_));
    return static_cast<uint64_t>(
               std::ceil(bytes / longest * static_cast<double>(r_.kv_sequence_disk_bytes))) +
           layer_on_disk_;
  }

  // Sizes of the rings for a cache, in falling order: a smaller ring reads ahead less, down to one
  // layer of one sequence, for which the engine waits each time.
  std::vector<KvRings> ring_sizes() const {
    std::vector<KvRings> found;
    for (uint64_t bytes = good_rings_.host;
         bytes > staged_layer_ && found.size() < steps_.larger_rings; bytes /= 2) {
      found.push_back({round_up(bytes, kIoAlignment), good_rings_.device});
    }
    found.push_back(least_rings_);
    return found;
  }

  Placement with_kv(const Choice& choice) const {
    Placement placement;
    placement.kv = choice.kv;
    placement.host_rings.kv = choice.rings.host;
    placement.device_rings.kv = choice.rings.device;
    return placement;
  }

  Placement with_weights(Placement placement, WeightPlacement weights, bool deep) const {
    placement.host_rings.weights = weight_ring(weights.from_disk, deep);
    placement.device_rings.weights = r_.discrete ? weight_ring(weights.to_device, deep) : 0;
    placement.weights = std::move(weights);
    return placement;
  }

  bool fits_device(const Placement& placement) const {
    return placement.taken(r_).device <= r_.device.budget_bytes;
  }
  bool fits_host(const Placement& placement) const {
    return placement.taken(r_).host <= r_.host.budget_bytes;
  }
  bool fits_disk(const Placement& placement) const {
    return placement.taken(r_).disk <= r_.disk_free_bytes;
  }

  // The placement with the fewest weight bytes on slow tiers that fits beside the choice.
  std::optional<Placement> fit(const Choice& choice) const {
    Placement kv = with_kv(choice);
    if (!fits_device(kv) || !fits_host(kv) || kv.kv.disk > r_.disk_bytes) return std::nullopt;
    // Weights that memory cannot hold are on disk, wherever exactly they are cut.
    const TierBytes taken = kv.taken(r_);
    kv.weights.disk_bytes = minus(all_, minus(r_.device.budget_bytes, taken.device) +
                                            minus(r_.host.budget_bytes, taken.host));
    if (!fits_disk(kv)) return std::nullopt;
    std::optional<Placement> found =
        pinned_ ? with_weights(kv, *pinned_, choice.deep) : fewest_away(kv, choice.deep);
    if (!found || !fits_device(*found) || !fits_host(*found) || !fits_disk(*found)) {
      return std::nullopt;
    }
    return found;
  }

  // The placement with the fewest bytes off the device, and of these the fewest on disk, each to
  // within a slab. On a device that is not discrete the host's budget decides alone.
  std::optional<Placement> fewest_away(const Placement& kv, bool deep) const {
    const auto summed = [&](uint64_t disk, uint64_t host) {
      return with_weights(kv, weights_.sums(disk, host), deep);
    };
    const auto away = least(all_, [&](uint64_t bytes) { return fits_device(summed(0, bytes)); });
    if (!away) return std::nullopt;
    // Rounding for two tiers may need a slab more than for one.
    for (const uint64_t more : {uint64_t{0}, kSlabBytesMax, 2 * kSlabBytesMax, all_ - *away}) {
      const uint64_t bytes = std::min(all_, *away + more);
      const auto cut = [&](uint64_t disk) { return summed(disk, minus(bytes, disk)); };
      const auto disk = least(r_.discrete ? bytes : all_,
                              [&](uint64_t on_disk) { return fits_host(cut(on_disk)); });
      if (!disk) return std::nullopt;
      if (fits_device(cut(*disk))) {
        return with_weights(kv, weights_.place(*disk, minus(bytes, *disk)), deep);
      }
    }
    return std::nullopt;
  }

  // The least number up to `high` that fits, to within half a slab; none: `high` does not fit.
  template <class Fits>
  static std::optional<uint64_t> least(uint64_t high, const Fits& fits) {
    uint64_t low = 0;
    if (fits(low)) return low;
    if (!fits(high)) return std::nullopt;
    while (high - low > kSlabBytesMax / 2) {
      const uint64_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

  // The error that even the least choice does not fit: with all weights on disk, unless the user
  // fixed their shares.
  Status infeasible(const Choice& choice) const {
    const Placement placed =
        with_weights(with_kv(choice), pinned_ ? *pinned_ : weights_.place(all_), false);
    const Taken taken = taken_by(r_, placed);
    if (!fits_device(placed)) return memory_short(kDeviceText, r_.device, taken);
    if (!fits_host(placed)) return memory_short(kHostText, r_.host, taken);
    if (const uint64_t scratch = placed.taken(r_).disk; scratch > r_.disk_free_bytes) {
      return {Code::kInfeasible,
              "scratch files need " + format_bytes(scratch) + " on disk and can have " +
                  format_bytes(r_.disk_free_bytes) +
                  "; free some, name another --disk-dir, or raise --host-memory"};
    }
    return {Code::kInfeasible, "one sequence's share of the KV cache on disk needs --disk-memory " +
                                   mebibytes(choice.kv.disk) + ", which is " +
                                   format_bytes(r_.disk_bytes) + "; raise it or --host-memory"};
  }

  const PlacementRequest& r_;
  const WeightPlacer weights_;
  SearchSteps steps_ = kCpuSteps;
  const uint64_t all_;               // Bytes of weights
  const uint64_t longest_, wanted_;  // Bytes of KV cache: the longest sequence's, the block's
  const uint64_t layer_on_disk_, staged_layer_;
  uint64_t device_room_ = 0, host_room_ = 0;  // Bytes for weights and KV cache; on a CPU equal
  KvRings least_rings_, good_rings_;          // Unless the device is discrete, only for disk
  std::optional<WeightPlacement> pinned_;     // If the weights' shares are fixed
};

}  // namespace

TierBytes Placement::taken(const PlacementRequest& request) const {
  const Taken taken = taken_by(request, *this);
  TierBytes all;
  for (const TierBytes& bytes : {taken.process, taken.buffers, taken.weights, taken.kv}) {
    all.device += bytes.device;
    all.host += bytes.host;
    all.disk += bytes.disk;
  }
  return all;
}

Result<Placement> place(const PlacementRequest& request) {
  return Placer(request).place();
}

}  // namespace spillway
