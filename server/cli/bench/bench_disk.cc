// Measures the disk's rates for a benchmark's run.
#include <fcntl.h>

#include <algorithm>
#include <iterator>

#include "offload/io/disk_speed.h"
#include "offload/io/spill_file.h"
#include "server/cli/bench/bench_ceilings.h"

namespace spillway {

namespace {

// The grid of `spillway profile`, limited to the memory spared for it beside the model.
constexpr size_t kMemoryBytes = size_t{64} << 20;
constexpr size_t kBlocks[] = {size_t{256} << 10, size_t{1} << 20, size_t{2} << 20, size_t{8} << 20};
constexpr size_t kDepths[] = {1, 8, 32};
constexpr size_t kBlockMax = size_t{8} << 20;
constexpr int kPoints = std::size(kBlocks) * std::size(kDepths);

// Every combination runs briefly, then the best of them longer and more than once: shared disks
// stall now and then (one probe of 2 s gave 0.23 GB/s where the run after it read 2.3).
constexpr double kShortSeconds = 0.2, kLongSeconds = 0.8;
constexpr int kLong = 3;
constexpr int kProbes = kPoints + kLong;
constexpr uint64_t kWriteBytesMax = uint64_t{512} << 20;

struct Way {
  size_t block = 0, depth = 0;
};

// The best rate of `rate(way, probe)`. Combinations whose requests do not fit the file are skipped;
// kInvalidArgument where none fits.
template <class Rate>
Result<double> best_rate(const DiskProbe& base, const Rate& rate) {
  Status refused;
  Way best_way;
  double best = 0;
  int probes = 0;
  const auto measure = [&](const Way& way, double seconds) -> Status {
    DiskProbe probe = base;
    probe.request_bytes = way.block;
    probe.seconds_max = seconds;
    probe.from = static_cast<double>(probes++) / kProbes;  // Each at a different offset in the file
    const Result<DiskSpeed> speed = rate(probe, way.depth);
    if (!speed.ok()) return speed.status();
    if (speed.value().bytes_per_second() > best) {
      best = speed.value().bytes_per_second();
      best_way = way;
    }
    return {};
  };
  for (const size_t block : kBlocks) {
    for (const size_t depth : kDepths) {
      if (block * depth > kMemoryBytes) continue;
      const Status status = measure({block, depth}, kShortSeconds);
      if (status.ok()) continue;
      if (status.code() != Code::kInvalidArgument) return status;
      refused = status;
    }
  }
  if (best == 0) return refused;
  const Way chosen = best_way;
  for (int i = 0; i < kLong; ++i) SPILLWAY_RETURN_IF_ERROR(measure(chosen, kLongSeconds));
  return best;
}

Result<double> best_read(DiskMeter& meter, const File& file, bool data_only) {
  const DiskProbe base{.bytes_max = uint64_t{4} << 30, .data_only = data_only};
  return best_rate(
      base, [&](const DiskProbe& probe, size_t depth) { return meter.read(file, probe, depth); });
}

// A file of a run, striped where it has several parts.
Result<File> open_parts(const std::vector<std::string>& paths) {
  std::vector<File> parts;
  for (const std::string& path : paths) {
    SPILLWAY_ASSIGN_OR_RETURN(File part, File::open(path, O_RDONLY | O_DIRECT));
    parts.push_back(std::move(part));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return File::stripe(std::move(parts), kStripeBytes);
}

// Reads the cache that a run left on disk, which the run itself read: another file lies elsewhere,
// and a small new one is in the host's cache on many virtual machines (4 GiB gave 0.9 GB/s where
// 512 MiB gave 3.0). Does nothing when the run wrote too little.
Status measure_own_file(DiskMeter& meter, const Plan& plan, MeasuredCeilings* found) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, open_parts(plan.kv_files));
  const Result<double> rate = best_read(meter, file, true);
  if (!rate.ok()) return rate.status().code() == Code::kInvalidArgument ? Status() : rate.status();
  found->rates.disk_read = rate.value();
  found->of_own_file = true;
  return {};
}

}  // namespace

Status measure_disk_ceilings(Device& device, const Plan& plan, bool after_run,
                             MeasuredCeilings* found) {
  Ceilings* const ceilings = &found->rates;
  SPILLWAY_ASSIGN_OR_RETURN(DiskMeter meter, DiskMeter::open(device, kMemoryBytes));
  if (plan.weights.disk > 0) {
    SPILLWAY_ASSIGN_OR_RETURN(const File file, open_parts(plan.weights_files));
    SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_read, best_read(meter, file, false));
  }
  const uint64_t spilled = plan.kv.disk + plan.activations.disk;
  if (spilled == 0) return {};
  SPILLWAY_ASSIGN_OR_RETURN(const SpillDirectory directory, SpillDirectory::open(plan.disk_dirs));
  const uint64_t bytes = std::clamp(spilled, uint64_t{kBlockMax}, kWriteBytesMax);
  SPILLWAY_ASSIGN_OR_RETURN(const File file, directory.create(bytes));
  const auto write = [&](const DiskProbe& probe, size_t depth) {
    return meter.write(file, probe, depth);
  };
  // The first write only allocates a new file's blocks, so it is not timed.
  const DiskProbe fill{.bytes_max = bytes, .seconds_max = 2, .request_bytes = kBlockMax};
  SPILLWAY_RETURN_IF_ERROR(write(fill, kDepths[1]).status());
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_write, best_rate({.bytes_max = kWriteBytesMax}, write));
  if (plan.weights.disk > 0) return {};
  if (after_run && plan.kv.disk > 0) {
    SPILLWAY_RETURN_IF_ERROR(measure_own_file(meter, plan, found));
    if (found->of_own_file) return {};
  }
  SPILLWAY_ASSIGN_OR_RETURN(ceilings->disk_read, best_read(meter, file, false));
  return {};
}

}  // namespace spillway
