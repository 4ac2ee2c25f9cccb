#include "offload/io/disk_speed.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "offload/io/checksum.h"

namespace spillway {

namespace {

// Keeps all requests in flight until the probe ends.
class Pump {
 public:
  // `places`: offsets of requests, used in turn.
  Pump(Io& io, IoRequest::Kind kind, const File& file, std::vector<uint64_t> places,
       std::span<std::byte> memory, const DiskProbe& probe)
      : io_(io),
        request_bytes_(probe.request_bytes),
        checksum_(probe.checksum && kind == IoRequest::Kind::kRead),
        places_(std::move(places)),
        requests_max_(std::max<uint64_t>(1, probe.bytes_max / probe.request_bytes)),
        start_(steady_seconds()),
        deadline_(start_ + probe.seconds_max),
        requests_(memory.size() / probe.request_bytes) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i] = {.kind = kind,
                      .file = &file,
                      .memory = memory.data() + i * request_bytes_,
                      .bytes = request_bytes_,
                      .done = done,
                      .owner = this};
    }
  }

  // Runs the probe. Blocks.
  Result<DiskSpeed> run() {
    for (IoRequest& request : requests_) start(request);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ == 0; });
    if (!first_error_.ok()) return first_error_;
    return DiskSpeed{started_ * request_bytes_, end_ - start_};
  }

 private:
  static void done(IoRequest& request, Status status) {
    auto& pump = *static_cast<Pump*>(request.owner);
    if (pump.checksum_ && status.ok()) {
      // The sum is unused, but the compiler must not remove it.
      pump.sums_ ^= seeded_checksum({request.memory, request.bytes}, request.offset);
    }
    pump.start(request);
    pump.end(std::move(status));
  }

  // Submits the request for the next place, unless the probe is over.
  void start(IoRequest& request) {
    {
      const std::lock_guard lock(mutex_);
      if (started_ == requests_max_ || !first_error_.ok() || steady_seconds() > deadline_) return;
      request.offset = places_[started_ % places_.size()];
      ++started_;
      ++under_way_;
    }
    io_.submit(request);
  }

  void end(Status status) {
    const std::lock_guard lock(mutex_);
    if (first_error_.ok()) first_error_ = std::move(status);
    end_ = steady_seconds();
    if (--under_way_ == 0) changed_.notify_all();
  }

  Io& io_;
  const size_t request_bytes_;
  const bool checksum_;
  std::atomic<uint64_t> sums_{0};
  const std::vector<uint64_t> places_;
  const uint64_t requests_max_;
  const double start_, deadline_;
  std::vector<IoRequest> requests_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t started_ = 0;
  size_t under_way_ = 0;
  double end_ = 0;
  Status first_error_;
};

// Whether all bytes of a request in a striped file hold data, as far as file systems tell.
bool holds_data(const File& file, uint64_t offset, size_t bytes) {
  while (bytes > 0) {
    const File::Place place = file.place(offset, bytes);
    const auto begin = static_cast<off_t>(place.offset);
    const off_t data = ::lseek(place.file->fd(), begin, SEEK_DATA);
    if (data > begin || (data < 0 && errno == ENXIO)) return false;
    const off_t hole = data < 0 ? -1 : ::lseek(place.file->fd(), begin, SEEK_HOLE);
    if (hole >= 0 && static_cast<size_t>(hole - begin) < place.bytes) return false;
    offset += place.bytes;
    bytes -= place.bytes;
  }
  return true;
}

std::vector<uint64_t> places_in_stripes(const File& file, uint64_t file_bytes,
                                        const DiskProbe& probe) {
  std::vector<uint64_t> places;
  for (uint64_t at = 0; at + probe.request_bytes <= file_bytes; at += probe.request_bytes) {
    if (!probe.data_only || holds_data(file, at, probe.request_bytes)) places.push_back(at);
  }
  return places;
}

// Offsets of all whole requests in a file of `file_bytes` bytes.
std::vector<uint64_t> places_in(const File& file, uint64_t file_bytes, const DiskProbe& probe) {
  if (file.striped()) return places_in_stripes(file, file_bytes, probe);
  std::vector<uint64_t> places;
  uint64_t begin = 0;
  while (begin < file_bytes) {
    uint64_t end = file_bytes;
    if (probe.data_only) {
      const off_t data = ::lseek(file.fd(), static_cast<off_t>(begin), SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // No data from here on
      if (data >= 0) {
        begin = (static_cast<uint64_t>(data) + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
        const off_t hole = ::lseek(file.fd(), data, SEEK_HOLE);
        if (hole >= 0) end = static_cast<uint64_t>(hole);
      }  // Else the file system does not report holes.
    }
    for (; begin + probe.request_bytes <= end; begin += probe.request_bytes) {
      places.push_back(begin);
    }
    begin = std::max(begin, end);
  }
  return places;
}

Result<DiskSpeed> measure(Io& io, IoRequest::Kind kind, const File& file,
                          std::span<std::byte> memory, const DiskProbe& probe) {
  SPILLWAY_CHECK(probe.request_bytes > 0 && probe.request_bytes <= memory.size());
  SPILLWAY_ASSIGN_OR_RETURN(const FileStamp stamp, file.stamp());
  if (stamp.bytes < probe.request_bytes) {
    return invalid_argument(file.path() + " has " + format_bytes(stamp.bytes) +
                            ", too little to measure a disk with; it takes " +
                            format_bytes(probe.request_bytes));
  }
  std::vector<uint64_t> places = places_in(file, stamp.bytes, probe);
  if (places.empty()) {
    return invalid_argument("nothing in " + file.path() + " to measure a disk with: no " +
                            format_bytes(probe.request_bytes) + " in one piece were written");
  }
  const auto first = static_cast<ptrdiff_t>(probe.from * static_cast<double>(places.size()));
  std::rotate(places.begin(), places.begin() + first, places.end());
  return Pump(io, kind, file, std::move(places), memory, probe).run();
}

}  // namespace

Result<DiskSpeed> measure_disk_read(Io& io, const File& file, std::span<std::byte> memory,
                                    const DiskProbe& probe) {
  return measure(io, IoRequest::Kind::kRead, file, memory, probe);
}

Result<DiskSpeed> measure_disk_write(Io& io, const File& file, std::span<std::byte> memory,
                                     const DiskProbe& probe) {
  return measure(io, IoRequest::Kind::kWrite, file, memory, probe);
}

Result<DiskMeter> DiskMeter::open(Device& device, size_t memory_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(auto io, open_io({}));
  SPILLWAY_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(Memory::kPinned, memory_bytes));
  return DiskMeter(std::move(buffer), std::move(io));
}

DiskMeter::DiskMeter(Buffer buffer, std::unique_ptr<Io> io)
    : buffer_(std::move(buffer)), memory_(buffer_.data(), buffer_.bytes()), io_(std::move(io)) {
  std::mt19937_64 random(1);
  for (size_t at = 0; at + sizeof(uint64_t) <= memory_.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(memory_.data() + at, &word, sizeof(word));
  }
  io_->use_memory(memory_);
}

Result<DiskSpeed> DiskMeter::read(const File& file, const DiskProbe& probe, size_t depth) {
  SPILLWAY_CHECK(depth <= memory_.size() / probe.request_bytes);
  return measure_disk_read(*io_, file, memory_.first(depth * probe.request_bytes), probe);
}

Result<DiskSpeed> DiskMeter::write(const File& file, const DiskProbe& probe, size_t depth) {
  SPILLWAY_CHECK(depth <= memory_.size() / probe.request_bytes);
  return measure_disk_write(*io_, file, memory_.first(depth * probe.request_bytes), probe);
}

}  // namespace spillway
