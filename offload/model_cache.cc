#include "offload/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "kernels/input_hadamard.h"

namespace spillway {

namespace {

constexpr std::string_view kPackedSuffix = ".spill";
constexpr size_t kFingerprintDigits = 16;  // Of the fingerprint's 32

using std::chrono::milliseconds;

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

// A model's name with only the characters that suit a file name.
std::string file_stem(const std::string& name) {
  std::string stem;
  for (const char c : name.substr(0, 64)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_';
    stem += plain ? c : '_';
  }
  return stem.empty() || stem.front() == '.' ? "model" + stem : stem;
}

// Whether the open file still has its name: who removes a lock's file does so while he has it.
bool has_its_name(const File& file) {
  struct stat open {};
  struct stat named {};
  return ::fstat(file.fd(), &open) == 0 && ::stat(file.path().c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace

std::string cached_file_name(const std::string& model_name, const std::string& fingerprint,
                             const std::string& format, MatrixLayout layout) {
  std::string packed_for =
      layout == MatrixLayout::kPanels16 ? "" : "-" + std::string(layout_name(layout));
  // Builds that do not know Hadamard matrices have files of these formats under another name.
  const std::optional<Format> known = format_of_name(format);
  if (known && takes_hadamard(*known)) packed_for += "-hadamard";
  return file_stem(model_name) + "-" + fingerprint.substr(0, kFingerprintDigits) + "-" + format +
         packed_for + std::string(kPackedSuffix);
}

bool is_cached_file_name(std::string_view name) {
  if (!name.ends_with(kPackedSuffix) || name.front() == '.') return false;
  name.remove_suffix(kPackedSuffix.size());
  for (size_t dash = name.find('-', 1); dash != std::string_view::npos;
       dash = name.find('-', dash + 1)) {
    const std::string_view print = name.substr(dash + 1, kFingerprintDigits);
    if (print.size() < kFingerprintDigits || !std::all_of(print.begin(), print.end(), is_hex)) {
      continue;
    }
    const std::string_view rest = name.substr(dash + 1 + kFingerprintDigits);
    const bool format =
        rest.size() > 1 && rest.front() == '-' && std::all_of(rest.begin(), rest.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                 c == '_';  // "q4_1"
        });
    if (format) return true;
  }
  return false;
}

Result<bool> try_lock(const File& file, int operation) {
  while (::flock(file.fd(), operation | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return io_error("lock " + file.path(), errno);
  }
  return true;
}

Result<std::optional<CacheLock>> CacheLock::try_take(const std::string& packed) {
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(File file, File::open(packed + kCacheLockSuffix, O_RDWR | O_CREAT));
    SPILLWAY_ASSIGN_OR_RETURN(const bool locked, try_lock(file, LOCK_EX));
    if (!locked) return std::optional<CacheLock>();
    if (has_its_name(file)) return std::optional<CacheLock>(CacheLock(std::move(file)));
  }
}

Result<CacheLock> CacheLock::take(const std::string& packed,
                                  const std::function<Status()>& waiting) {
  // Polls, so that the user can interrupt the wait.
  while (true) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<CacheLock> lock, try_take(packed));
    if (lock) return *std::move(lock);
    SPILLWAY_RETURN_IF_ERROR(waiting());
    std::this_thread::sleep_for(milliseconds(200));
  }
}

Status CacheLock::remove() {
  if (::unlink(file_.path().c_str()) == 0 || errno == ENOENT) return {};
  return io_error("remove " + file_.path(), errno);
}

std::shared_ptr<const ModelUse> ModelUse::begin(const std::string& packed) {
  Result<File> file = File::open_to_read(packed);
  if (!file.ok()) return nullptr;
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    const Result<bool> locked = try_lock(file.value(), LOCK_SH);
    if (!locked.ok()) return nullptr;
    if (locked.value()) {
      const std::shared_ptr<const ModelUse> use(new ModelUse(std::move(file).value()));
      use->record();
      return use;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  return nullptr;
}

ModelUse::~ModelUse() {
  record();
}

void ModelUse::record() const {
  // Fails for files outside a cache, which have no lock beside them.
  (void)::utimensat(AT_FDCWD, (file_.path() + kCacheLockSuffix).c_str(), nullptr, 0);
}

Result<int64_t> last_use_ns(const std::string& packed) {
  const auto time_of = [](const std::string& path) -> Result<int64_t> {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return io_error("stat " + path, errno);
    return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  };
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t made, time_of(packed));
  return std::max(made, [&] {
    const Result<int64_t> used = time_of(packed + kCacheLockSuffix);
    return used.ok() ? used.value() : made;
  }());
}

}  // namespace spillway
