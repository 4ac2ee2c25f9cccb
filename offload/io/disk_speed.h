// Measures the present transfer rate of a file system, with which a run's disk time is compared
// (`bench`, `profile`), through the Io, file and memory of the run, so that no layer between them
// and the disk is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/status.h"
#include "kernels/device.h"
#include "offload/io/file.h"
#include "offload/io/io.h"

namespace spillway {

struct DiskProbe {
  uint64_t bytes_max = uint64_t{1} << 30;  // Ends after this many bytes
  double seconds_max = 2;                  // or seconds, whichever comes first.
  size_t request_bytes = size_t{2} << 20;
  bool checksum = false;  // Checks what was read, as weights and cache are checked
  // Only ranges that hold data, as far as the file system tells (lseek(2), SEEK_DATA): reading
  // holes and space that is only reserved costs no disk anything.
  bool data_only = false;
  // The share of the file that lies before the first request: recently read ranges may still be in
  // a hypervisor's cache.
  double from = 0;
};

struct DiskSpeed {
  uint64_t bytes = 0;
  double seconds = 0;
  double bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
};

// Reads the file, or overwrites it with the contents of `memory`, from DiskProbe::from on, and
// again from its start when it is shorter than the probe. As many requests are kept in flight as
// `memory` holds: 32 MiB keeps a queue of 32 full. Blocks until the last has ended.
// kInvalidArgument when the file is shorter than one request, or with data_only no request finds
// data; else the first error of a request. For a measure of the disk and not of the page cache the
// file must be open with O_DIRECT. REQUIRES: `memory` holds a request, both multiples of
// kIoAlignment; `from` in [0, 1).
Result<DiskSpeed> measure_disk_read(Io& io, const File& file, std::span<std::byte> memory,
                                    const DiskProbe& probe);
Result<DiskSpeed> measure_disk_write(Io& io, const File& file, std::span<std::byte> memory,
                                     const DiskProbe& probe);

// The disk as a run sees it: asynchronous requests past the page cache, from memory that is not
// zero, which may cost a virtual disk nothing. One thread.
class DiskMeter {
 public:
  // Uses pinned memory of the device, whose huge pages are worth a factor of two.
  static Result<DiskMeter> open(Device& device, size_t memory_bytes);

  // Keep `depth` requests in flight. REQUIRES: memory_bytes holds them.
  Result<DiskSpeed> read(const File& file, const DiskProbe& probe, size_t depth);
  Result<DiskSpeed> write(const File& file, const DiskProbe& probe, size_t depth);

 private:
  DiskMeter(Buffer buffer, std::unique_ptr<Io> io);

  Buffer buffer_;
  std::span<std::byte> memory_;
  std::unique_ptr<Io> io_;  // Destroyed before the memory that it uses
};

}  // namespace spillway
