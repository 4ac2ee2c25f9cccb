#include "offload/io/spill_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

// A spill file's temporary name is the prefix and 16 hexadecimal digits.
constexpr std::string_view kPrefix = ".spillway-scratch-";
constexpr size_t kDigits = 16;

std::string new_name() {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, number);
  return std::string(kPrefix) + digits;
}

bool is_ours(std::string_view name) {
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

// Removes leftover files. A living process may be about to unlink the file it just made; it does
// not matter if that is gone by then.
Status sweep(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat info {};
    if (is_ours(entry->path().filename().string()) && ::lstat(path.c_str(), &info) == 0 &&
        S_ISREG(info.st_mode) && info.st_uid == ::geteuid()) {
      ::unlink(path.c_str());
    }
  }
  if (error) return io_error("list " + directory, error.value());
  return {};
}

Status no_room(const std::string& directory, uint64_t bytes, uint64_t free) {
  return {Code::kCapacity, "spilling needs " + format_bytes(bytes) + ", " + directory + " has " +
                               format_bytes(free) +
                               " free; make room there, or choose another --disk-dir or a smaller "
                               "--disk-memory"};
}

// Where `path`, which need not exist yet, lies or will lie.
std::filesystem::path existing_part(const std::string& path) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(there, error) && there != there.parent_path()) {
    there = there.parent_path();
  }
  return there;
}

Status open_directory(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return io_error("make directory " + parent.string(), error.value());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return io_error("make directory " + path, errno);
  }
  return sweep(path);
}

// Without a trailing slash, so that the directory itself is made with its own mode.
std::string clean_name(const std::string& name) {
  std::filesystem::path clean(name);
  if (!clean.has_filename()) clean = clean.parent_path();
  return clean.string();
}

Result<File> create_in(const std::string& directory, uint64_t bytes, uint64_t later_bytes) {
  // Checks the free space first, so that a file that cannot fit does not fill a shared disk for a
  // moment.
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free, free_disk_bytes(directory));
  if (bytes > free) return no_room(directory, bytes, free);

  const std::string path = directory + "/" + new_name();
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_error("unlink " + path, errno);

  int reserved = 0;
  if (bytes > 0) {
    do {
      reserved = ::fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes));
    } while (reserved != 0 && errno == EINTR);
  }
  // Where space cannot be reserved (some network and FUSE file systems), a disk that fills up later
  // is an error of the failing write.
  if (reserved != 0 && errno == EOPNOTSUPP) {
    reserved = ::ftruncate(file.fd(), static_cast<off_t>(bytes));
  }
  if (reserved != 0 && (errno == ENOSPC || errno == EDQUOT)) return no_room(directory, bytes, free);
  if (reserved == 0 && later_bytes > 0) {
    reserved = ::ftruncate(file.fd(), static_cast<off_t>(bytes + later_bytes));
  }
  if (reserved != 0) return io_error("reserve " + format_bytes(bytes) + " in " + directory, errno);

  // O_DIRECT is set after opening, since open(2) may leave a file behind when it refuses the flag.
  const int flags = ::fcntl(file.fd(), F_GETFL);
  (void)::fcntl(file.fd(), F_SETFL, flags | O_DIRECT);
  return file;
}

}  // namespace

Result<uint64_t> free_disk_bytes(const std::string& path) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(existing_part(path), error);
  if (error) return io_error("ask for the free space of " + path, error.value());
  return uint64_t{space.available};
}

Result<uint64_t> free_striped_bytes(const std::vector<std::string>& paths) {
  // How many of the directories, and so of the stripes, a file system has.
  std::map<dev_t, uint64_t> stripes;
  std::vector<dev_t> devices;
  for (const std::string& path : paths) {
    struct stat info {};
    const std::string there = existing_part(path).string();
    if (::stat(there.c_str(), &info) != 0) return io_error("stat " + there, errno);
    ++stripes[info.st_dev];
    devices.push_back(info.st_dev);
  }
  uint64_t least = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free, free_disk_bytes(paths[i]));
    const uint64_t share = free / stripes[devices[i]];
    least = i == 0 ? share : std::min(least, share);
  }
  // A file's last row of stripes may lie in the first directories alone.
  if (paths.size() > 1) least = least / kStripeBytes * kStripeBytes;
  return least * paths.size();
}

Result<SpillDirectory> SpillDirectory::open(const std::vector<std::string>& names) {
  SPILLWAY_CHECK(!names.empty());
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    paths.push_back(clean_name(name));
    SPILLWAY_RETURN_IF_ERROR(open_directory(paths.back()));
  }
  return SpillDirectory(std::move(paths));
}

Result<SpillDirectory> SpillDirectory::open(const std::string& path) {
  return open(std::vector{path});
}

Result<File> SpillDirectory::create(uint64_t bytes, uint64_t later_bytes) const {
  SPILLWAY_CHECK(bytes + later_bytes > 0);
  const size_t count = paths_.size();
  if (count == 1) return create_in(paths_.front(), bytes, later_bytes);
  std::vector<File> parts;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t share = File::bytes_of_part(bytes, i, count, kStripeBytes);
    const uint64_t whole = File::bytes_of_part(bytes + later_bytes, i, count, kStripeBytes);
    SPILLWAY_ASSIGN_OR_RETURN(File part, create_in(paths_[i], share, whole - share));
    parts.push_back(std::move(part));
  }
  return File::stripe(std::move(parts), kStripeBytes);
}

}  // namespace spillway
