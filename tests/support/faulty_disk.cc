// A disk and a clock that go wrong when a test says so, for a whole program: preloaded
// (LD_PRELOAD), it stands before the C library's calls. The file that FAULTY_DISK names holds the
// faults, one a line, read anew at every call:
//
//   read  ERRNO PART     reads of files whose path contains PART fail
//   write ERRNO PART     so do writes, and making a file longer
//   sync  ERRNO PART     so do fsync and fdatasync
//   open  ERRNO PART     so do opening for writing, making, renaming and removing
//   flip  OFFSET PART    one bit of that byte of the file is another one when it is read
//   clock SECONDS -      the time of day is so much later
//
// io_uring, whose reads nobody can stand before, cannot be set up: the program reads with threads.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>

namespace {

template <class Call>
Call* next(const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

// By system calls: the functions of these names are the ones below.
std::string faults() {
  const char* const path = std::getenv("FAULTY_DISK");
  if (path == nullptr) return {};
  const int before = errno;
  std::string text;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd >= 0) {
    char some[4096];
    const long got = ::syscall(SYS_read, fd, some, sizeof some);
    if (got > 0) text.assign(some, static_cast<size_t>(got));
    ::syscall(SYS_close, fd);
  }
  errno = before;
  return text;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const int before = errno;
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  errno = before;
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string();
}

struct Fault {
  bool found = false;
  long number = 0;  // An errno, an offset, seconds
};

// The first fault of `call` for the path that `path()` gives.
template <class Path>
Fault fault(std::string_view call, Path path) {
  const std::string all = faults();
  std::string_view rest = all;
  std::string name;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t first = line.find(' ');
    const size_t second = line.find(' ', first + 1);
    if (second == std::string_view::npos || line.substr(0, first) != call) continue;
    const std::string_view part = line.substr(second + 1);
    if (part != "-") {
      if (name.empty()) name = path();
      if (name.find(part) == std::string::npos) continue;
    }
    return {true, std::strtol(std::string(line.substr(first + 1)).c_str(), nullptr, 10)};
  }
  return {};
}

bool fails(std::string_view call, int fd) {
  const Fault found = fault(call, [fd] { return path_of(fd); });
  if (found.found) errno = static_cast<int>(found.number);
  return found.found;
}

bool fails(std::string_view call, const char* path) {
  const Fault found = fault(call, [path] { return std::string(path); });
  if (found.found) errno = static_cast<int>(found.number);
  return found.found;
}

ssize_t flipped(int fd, void* memory, ssize_t got, off_t offset) {
  if (got <= 0) return got;
  const Fault found = fault("flip", [fd] { return path_of(fd); });
  if (found.found && found.number >= offset && found.number < offset + got) {
    static_cast<unsigned char*>(memory)[found.number - offset] ^= 1;
  }
  return got;
}

time_t later() {
  const Fault found = fault("clock", [] { return std::string(); });
  return found.found ? found.number : 0;
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 && fails("open", path)) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags | O_LARGEFILE, mode));
}

mode_t mode_of(int flags, va_list list) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" {

int io_uring_queue_init(unsigned, void*, unsigned) {
  return -EPERM;
}
int io_uring_queue_init_params(unsigned, void*, void*) {
  return -EPERM;
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_file(folder, path, flags, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat64(int folder, const char* path, int flags, ...) __attribute__((alias("openat")));
int __open_2(const char* path, int flags) {
  return open_file(AT_FDCWD, path, flags, 0);
}
int __open64_2(const char* path, int flags) __attribute__((alias("__open_2")));

ssize_t read(int fd, void* memory, size_t bytes) {
  return fails("read", fd) ? -1 : ::syscall(SYS_read, fd, memory, bytes);
}
ssize_t __read_chk(int fd, void* memory, size_t bytes, size_t) {
  return read(fd, memory, bytes);
}
ssize_t pread(int fd, void* memory, size_t bytes, off_t offset) {
  if (fails("read", fd)) return -1;
  return flipped(fd, memory, ::syscall(SYS_pread64, fd, memory, bytes, offset), offset);
}
ssize_t pread64(int fd, void* memory, size_t bytes, off_t offset) __attribute__((alias("pread")));
ssize_t __pread_chk(int fd, void* memory, size_t bytes, off_t offset, size_t) {
  return pread(fd, memory, bytes, offset);
}
ssize_t __pread64_chk(int fd, void* memory, size_t bytes, off_t offset, size_t)
    __attribute__((alias("__pread_chk")));

ssize_t write(int fd, const void* memory, size_t bytes) {
  return fails("write", fd) ? -1 : ::syscall(SYS_write, fd, memory, bytes);
}
ssize_t pwrite(int fd, const void* memory, size_t bytes, off_t offset) {
  return fails("write", fd) ? -1 : ::syscall(SYS_pwrite64, fd, memory, bytes, offset);
}
ssize_t pwrite64(int fd, const void* memory, size_t bytes, off_t offset)
    __attribute__((alias("pwrite")));
int ftruncate(int fd, off_t bytes) {
  return fails("write", fd) ? -1 : static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}
int ftruncate64(int fd, off_t bytes) __attribute__((alias("ftruncate")));
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return fails("write", fd) ? -1
                            : static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int fallocate64(int fd, int mode, off_t offset, off_t bytes) __attribute__((alias("fallocate")));

int fsync(int fd) {
  return fails("sync", fd) ? -1 : static_cast<int>(::syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  return fails("sync", fd) ? -1 : static_cast<int>(::syscall(SYS_fdatasync, fd));
}

int rename(const char* from, const char* to) {
  return fails("open", to) ? -1 : static_cast<int>(::syscall(SYS_rename, from, to));
}
int unlink(const char* path) {
  return fails("open", path) ? -1 : static_cast<int>(::syscall(SYS_unlink, path));
}

int clock_gettime(clockid_t clock, timespec* now) {
  static const auto real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += later();
  return result;
}
time_t time(time_t* where) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (where != nullptr) *where = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(timeval* now, void*) {
  timespec exact{};
  clock_gettime(CLOCK_REALTIME, &exact);
  *now = {exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}

}  // extern "C"
