#include "offload/cache_contents.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <tuple>

#include "offload/convert/fingerprint.h"
#include "offload/model_cache.h"
#include "offload/model_file/model_file.h"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartialSuffix = ".partial";

// The name without `suffix`, if what is left is a packed file's of the cache; else "".
std::string packed_name(const std::string& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return "";
  const std::string packed = name.substr(0, name.size() - suffix.size());
  return is_cached_file_name(packed) ? packed : "";
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

// Network file systems lock exclusively only what is open for writing.
Result<File> open_to_lock(const std::string& path) {
  Result<File> file = File::open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  return file.ok() ? std::move(file) : File::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
}

// Whether another process uses or writes the file. What cannot be looked at counts as used.
bool is_in_use(const std::string& path) {
  const Result<File> file = open_to_lock(path);
  if (!file.ok()) return true;
  const Result<bool> alone = try_lock(file.value(), LOCK_EX);
  return !alone.ok() || !alone.value();
}

OriginState state_of(const ModelFileTable& table) {
  if (table.origin.empty()) return OriginState::kUnknown;
  std::error_code error;
  if (!fs::exists(table.origin, error)) return OriginState::kGone;
  const Result<std::string> print = checkpoint_fingerprint(table.origin);
  if (!print.ok()) return OriginState::kUnknown;
  return source_of(table.shape.name, print.value()) == table.source ? OriginState::kUnchanged
                                                                    : OriginState::kChanged;
}

CachedModel look_at(const std::string& path, uint64_t bytes, bool look_at_origin) {
  CachedModel model;
  model.path = path;
  model.bytes = bytes;
  model.used_ns = [&] {
    const Result<int64_t> used = last_use_ns(path);
    return used.ok() ? used.value() : 0;
  }();
  model.in_use = is_in_use(path);
  const Result<ModelFile> file = ModelFile::open(path);
  if (!file.ok()) {
    model.damage = file.status().message();
    return model;
  }
  const ModelFileTable& table = file->table();
  model.name = table.shape.name;
  model.format = table.format;
  for (const TensorInfo& tensor : table.tensors) {
    if (tensor.spec.kind == WeightKind::kMatrix) model.layout = tensor.layout;
  }
  model.origin = table.origin;
  if (look_at_origin) model.origin_state = state_of(table);
  return model;
}

// Removes the lock's file if there is nothing left to lock.
Status remove_lone_lock(const std::string& packed, CacheLock& lock) {
  if (exists(packed) || exists(packed + std::string(kPartialSuffix))) return {};
  return lock.remove();
}

// Removes `path`, a packed file of the cache or a partial one, while nobody else has it. False: a
// process has it.
Result<bool> remove_unused(const std::string& path, const std::string& packed) {
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<CacheLock> lock, CacheLock::try_take(packed));
  if (!lock) return false;
  const Result<File> file = open_to_lock(path);
  if (file.status().code() != Code::kNotFound) {
    if (!file.ok()) return file.status();
    SPILLWAY_ASSIGN_OR_RETURN(const bool alone, try_lock(file.value(), LOCK_EX));
    if (!alone) return false;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_error("remove " + path, errno);
  }
  SPILLWAY_RETURN_IF_ERROR(remove_lone_lock(packed, *lock));
  return true;
}

// Removes files one after another and keeps the account.
class Pruner {
 public:
  Pruner(uint64_t bytes, bool dry_run) : dry_run_(dry_run) { result_.bytes_left = bytes; }

  // `in_use`: as it was listed.
  void remove(const std::string& path, const std::string& packed, uint64_t bytes, bool in_use) {
    Result<bool> gone = !in_use;
    if (!in_use && !dry_run_) gone = remove_unused(path, packed);
    if (!gone.ok()) {
      result_.failures.push_back(gone.status());
    } else if (!gone.value()) {
      result_.in_use.push_back(path);
    } else {
      result_.removed.push_back({path, bytes});
      result_.bytes_left -= bytes;
    }
  }

  uint64_t bytes_left() const { return result_.bytes_left; }
  PruneResult take() { return std::move(result_); }

 private:
  const bool dry_run_;
  PruneResult result_;
};

// Locks whose packed files somebody removed by hand.
void remove_lone_locks(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> alone;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = packed_name(entry->path().filename().string(), kCacheLockSuffix);
    if (!name.empty() && !exists(directory + "/" + name)) alone.push_back(directory + "/" + name);
  }
  for (const std::string& packed : alone) {
    // Whoever makes the file just now has its lock; then it stays.
    auto lock = CacheLock::try_take(packed);
    if (lock.ok() && lock.value()) (void)remove_lone_lock(packed, *lock.value());
  }
}

}  // namespace

uint64_t CacheContents::bytes() const {
  uint64_t sum = 0;
  for (const CachedModel& model : models) sum += model.bytes;
  for (const PartialFile& file : partial) sum += file.bytes;
  return sum;
}

Result<CacheContents> list_cache(const std::string& directory, bool look_at_origins) {
  CacheContents contents;
  contents.directory = directory;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  if (error == std::errc::no_such_file_or_directory) return contents;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::string path = directory + "/" + name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const auto bytes = static_cast<uint64_t>(info.st_size);
    if (is_cached_file_name(name)) {
      contents.models.push_back(look_at(path, bytes, look_at_origins));
    } else if (!packed_name(name, kPartialSuffix).empty()) {
      contents.partial.push_back({path, bytes, is_in_use(path)});
    } else if (name.starts_with("hardware-") && name.ends_with(".json")) {
      contents.profiles.push_back({path, bytes});
    }
  }
  if (error) return io_error("list the cache folder " + directory, error.value());
  std::sort(contents.models.begin(), contents.models.end(),
            [](const CachedModel& a, const CachedModel& b) {
              return std::tie(a.used_ns, a.path) < std::tie(b.used_ns, b.path);
            });
  const auto by_path = [](const auto& a, const auto& b) { return a.path < b.path; };
  std::sort(contents.partial.begin(), contents.partial.end(), by_path);
  std::sort(contents.profiles.begin(), contents.profiles.end(), by_path);
  return contents;
}

PruneResult prune_cache(const CacheContents& contents, const CacheLimits& limits, int64_t now_ns,
                        bool dry_run) {
  Pruner pruner(contents.bytes(), dry_run);
  for (const PartialFile& file : contents.partial) {
    if (file.in_use) continue;
    pruner.remove(file.path, file.path.substr(0, file.path.size() - kPartialSuffix.size()),
                  file.bytes, false);
  }
  for (const CachedModel& model : contents.models) {
    const double unused_seconds = static_cast<double>(now_ns - model.used_ns) / 1e9;
    const bool old = limits.unused_seconds_max && unused_seconds > *limits.unused_seconds_max;
    const bool over = limits.bytes_max && pruner.bytes_left() > *limits.bytes_max;
    if (old || over) pruner.remove(model.path, model.path, model.bytes, model.in_use);
  }
  if (!dry_run) remove_lone_locks(contents.directory);
  return pruner.take();
}

}  // namespace spillway
