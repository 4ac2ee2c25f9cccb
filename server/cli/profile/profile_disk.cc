#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/measure/rates.h"
#include "offload/io/disk_speed.h"
#include "offload/io/spill_file.h"
#include "scheduler/planning/disk_dirs.h"
#include "server/cli/profile/profile_measure.h"

namespace spillway {

namespace {

constexpr size_t kBlocks[] = {size_t{256} << 10, size_t{1} << 20, size_t{2} << 20, size_t{8} << 20};
constexpr int kDepths[] = {1, 8, 32};
constexpr size_t kBlockMax = size_t{8} << 20;
constexpr size_t kDepthMax = 32;

constexpr double kDiskShare = 0.35, kDiskSecondsMax = 40;
constexpr int kSamples = 3;

// Larger files are no slower; writing wears the disk, so it is limited further.
constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;
constexpr uint64_t kFreeShare = 4;  // At most 1/kFreeShare of the free bytes
constexpr uint64_t kReadBytesMax = uint64_t{1} << 30;
constexpr uint64_t kWriteBytesMax = uint64_t{256} << 20;

// A decode step's matrix product from memory, run beside reads as the engine issues them.
constexpr size_t kBesidePoolBytes = size_t{128} << 20;
constexpr LinearProbe kBesideProduct{Format::kBF16, 64, 4096, 4096};
constexpr RunLimits kBesideRuns{.runs_min = 1, .runs_max = 1, .run_seconds = 0.03};
constexpr size_t kBesideBlock = size_t{2} << 20;
constexpr int kBesideSamples = 5;
constexpr double kBesideSecondsMin = 0.1;  // Per sample: several runs of the matrix product
// Losses outside these bounds cannot be told from noise.
constexpr double kLostMin = 0.01, kLostMax = 0.99;

class DiskProfile {
 public:
  DiskProfile(DiskMeter& meter, const File& file, const ProfileOptions& options, double seconds)
      : meter_(meter),
        file_(file),
        options_(options),
        direction_seconds_(seconds / 2),
        sample_seconds_(direction_seconds_ / (std::size(kBlocks) * std::size(kDepths) * kSamples)) {
  }

  // Fills the file, since reading blocks that were never written costs nothing. A slow disk gets a
  // shorter file.
  Status fill(uint64_t bytes, double seconds) {
    const DiskProbe probe{.bytes_max = bytes, .seconds_max = seconds, .request_bytes = kBlockMax};
    constexpr size_t kFillDepth = 8;
    SPILLWAY_ASSIGN_OR_RETURN(const DiskSpeed filled, meter_.write(file_, probe, kFillDepth));
    const uint64_t left = std::min(bytes, filled.bytes);
    const auto shorten = [](const File& part, uint64_t to) -> Status {
      if (::ftruncate(part.fd(), static_cast<off_t>(to)) == 0) return {};
      return io_error("shorten " + part.path(), errno);
    };
    if (!file_.striped()) return shorten(file_, left);
    const size_t count = file_.parts().size();
    for (size_t i = 0; i < count; ++i) {
      SPILLWAY_RETURN_IF_ERROR(
          shorten(file_.parts()[i], File::bytes_of_part(left, i, count, kStripeBytes)));
    }
    return {};
  }

  Result<std::vector<DiskFigure>> measure(bool write) {
    std::vector<DiskFigure> figures;
    const double deadline = steady_seconds() + direction_seconds_;
    for (const size_t block : kBlocks) {
      for (const int depth : kDepths) {
        // One sample when time runs short.
        const int samples = steady_seconds() > deadline ? 1 : kSamples;
        std::vector<double> rates;
        for (int i = 0; i < samples; ++i) {
          if (!options_.keep_going()) return Status(Code::kCancelled, "interrupted");
          SPILLWAY_ASSIGN_OR_RETURN(const DiskSpeed speed, once(write, block, depth));
          rates.push_back(speed.bytes_per_second());
        }
        figures.push_back({block, depth, figure_of(std::move(rates))});
      }
    }
    return figures;
  }

 private:
  Result<DiskSpeed> once(bool write, size_t block, int depth) {
    const DiskProbe probe{.bytes_max = write ? kWriteBytesMax : kReadBytesMax,
                          .seconds_max = sample_seconds_,
                          .request_bytes = block};
    const auto requests = static_cast<size_t>(depth);
    return write ? meter_.write(file_, probe, requests) : meter_.read(file_, probe, requests);
  }

  DiskMeter& meter_;
  const File& file_;
  const ProfileOptions& options_;
  const double direction_seconds_, sample_seconds_;
};

// FLOP/s of the matrix product while `going`, at least one run.
Result<double> product_rate(Device& device, const WeightPool& pool,
                            const std::atomic<bool>* going = nullptr) {
  std::vector<double> rates;
  do {
    SPILLWAY_ASSIGN_OR_RETURN(const Rates run,
                              linear_rates(device, pool, kBesideProduct, kBesideRuns));
    rates.insert(rates.end(), run.begin(), run.end());
  } while (going != nullptr && *going);
  if (going != nullptr && rates.size() > 1) rates.pop_back();  // The reads ended during it.
  return figure_of(std::move(rates)).value;
}

// Measures how much matrix products slow down while the disk is read and checksums are verified, as
// the bytes/s that would leave nothing of the processor.
Result<Figure> processor_taken(Device& device, DiskMeter& meter, const File& file,
                               const ProfileOptions& options, double seconds) {
  SPILLWAY_ASSIGN_OR_RETURN(const WeightPool pool, WeightPool::open(device, kBesidePoolBytes));
  const DiskProbe probe{.bytes_max = UINT64_MAX,
                        .seconds_max = std::max(kBesideSecondsMin, seconds / kBesideSamples),
                        .request_bytes = kBesideBlock,
                        .checksum = true};
  std::vector<double> samples;
  for (int i = 0; i < kBesideSamples; ++i) {
    if (!options.keep_going()) return Status(Code::kCancelled, "interrupted");
    SPILLWAY_ASSIGN_OR_RETURN(const double alone, product_rate(device, pool));
    std::atomic<bool> reading{true};
    Result<DiskSpeed> speed = DiskSpeed{};
    std::thread reader([&] {
      speed = meter.read(file, probe, kDepthMax);
      reading = false;
    });
    const Result<double> beside = product_rate(device, pool, &reading);
    reader.join();
    SPILLWAY_RETURN_IF_ERROR(speed.status());
    SPILLWAY_RETURN_IF_ERROR(beside.status());
    const double lost = std::clamp(1 - beside.value() / alone, kLostMin, kLostMax);
    samples.push_back(speed.value().bytes_per_second() / lost);
  }
  return figure_of(std::move(samples));
}

// Reads each disk for a moment and says its rate: stripes go at the pace of the slowest.
Status compare_disks(DiskMeter& meter, const File& file, const ProfileOptions& options) {
  constexpr double kSecondsEach = 0.5;
  constexpr double kSlow = 0.7;  // Of the fastest
  std::vector<double> rates;
  for (size_t i = 0; i < file.parts().size(); ++i) {
    if (!options.keep_going()) return Status(Code::kCancelled, "interrupted");
    const DiskProbe probe{
        .bytes_max = kReadBytesMax, .seconds_max = kSecondsEach, .request_bytes = kBesideBlock};
    const auto speed = meter.read(file.parts()[i], probe, kDepthMax);
    if (!speed.ok()) return speed.status();
    rates.push_back(speed.value().bytes_per_second());
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f GB/s", rates.back() / 1e9);
    options.say("  " + options.disk_dirs[i] + " alone reads " + text);
  }
  const auto [slowest, fastest] = std::minmax_element(rates.begin(), rates.end());
  if (*slowest < kSlow * *fastest) {
    options.say("warning: every disk gets the same share, so that all wait for " +
                options.disk_dirs[static_cast<size_t>(slowest - rates.begin())] +
                "; without it in --disk-dir the others may be faster together");
  }
  return {};
}

}  // namespace

Status measure_disk(Device& device, const ProfileOptions& options, HardwareProfile* profile) {
  if (!options.keep_going()) return {Code::kCancelled, "interrupted"};
  const bool several = options.disk_dirs.size() > 1;
  const std::string where = disk_dirs_text(options.disk_dirs);
  options.say((several ? "Measuring the disks under " : "Measuring the disk under ") + where);
  SPILLWAY_ASSIGN_OR_RETURN(const SpillDirectory directory,
                            SpillDirectory::open(options.disk_dirs));
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free, free_striped_bytes(options.disk_dirs));
  const uint64_t bytes = std::min(kFileBytesMax, free / kFreeShare) / kBlockMax * kBlockMax;
  if (bytes == 0) {
    return {Code::kCapacity, where + " has " + format_bytes(free) +
                                 " free; measuring the disk takes " +
                                 format_bytes(kBlockMax * kFreeShare) +
                                 ". Make room there, or choose another --disk-dir"};
  }
  profile->disk.free_bytes = figure_of({static_cast<double>(free)});
  SPILLWAY_ASSIGN_OR_RETURN(const File file, directory.create(bytes));
  SPILLWAY_ASSIGN_OR_RETURN(DiskMeter meter, DiskMeter::open(device, kBlockMax * kDepthMax));
  const double seconds = std::min(kDiskSecondsMax, kDiskShare * options.seconds);
  constexpr double kFillShare = 0.1, kBesideShare = 0.1;
  DiskProfile disk(meter, file, options, seconds * (1 - kFillShare - kBesideShare));
  SPILLWAY_RETURN_IF_ERROR(disk.fill(bytes, seconds * kFillShare));
  if (several) SPILLWAY_RETURN_IF_ERROR(compare_disks(meter, file, options));
  SPILLWAY_ASSIGN_OR_RETURN(profile->disk.read, disk.measure(false));
  SPILLWAY_ASSIGN_OR_RETURN(profile->disk.write, disk.measure(true));
  if (device.discrete()) return {};
  SPILLWAY_ASSIGN_OR_RETURN(profile->disk.processor,
                            processor_taken(device, meter, file, options, seconds * kBesideShare));
  return {};
}

}  // namespace spillway
