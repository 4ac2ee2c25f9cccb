#include "tests/support/power_cut.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

namespace spillway::test {

namespace {

constexpr size_t kSectorBytes = 512;  // What a disk writes whole or not at all

// A write, or a cut to `offset` bytes.
struct Change {
  size_t offset;
  std::string bytes;
  bool cut;
};

void apply_cut(std::string& file, size_t bytes) {
  if (bytes < file.size()) file.resize(bytes);
}

void apply_write(std::string& file, size_t offset, std::string_view bytes) {
  if (file.size() < offset + bytes.size()) file.resize(offset + bytes.size());
  std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
}

struct DiskFile {
  std::string now;              // As programs see it
  std::string synced;           // As it is on the disk for certain
  std::vector<Change> changes;  // Since then
  bool exists = true;
  bool certain = false;  // Its name is on the disk.

  void sync() {
    synced = now;
    changes.clear();
    certain = true;
  }
};

}  // namespace

struct PowerCutDisk::Body {
  std::function<void()> before_change;
  std::map<std::string, DiskFile> files;
  sqlite3_vfs vfs{};
  sqlite3_vfs* real = nullptr;
};

namespace {

using Body = PowerCutDisk::Body;

struct OpenFile {
  sqlite3_file base;  // First: SQLite's view of it
  Body* body;
  DiskFile* file;
};

OpenFile& opened(sqlite3_file* file) {
  return *reinterpret_cast<OpenFile*>(file);
}

int close_file(sqlite3_file*) {
  return SQLITE_OK;
}

int read_file(sqlite3_file* file, void* to, int count, sqlite3_int64 offset) {
  const std::string& now = opened(file).file->now;
  const auto wanted = static_cast<size_t>(count);
  const size_t from = std::min(static_cast<size_t>(offset), now.size());
  const size_t there = std::min(wanted, now.size() - from);
  std::memcpy(to, now.data() + from, there);
  std::memset(static_cast<char*>(to) + there, 0, wanted - there);
  return there == wanted ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

int write_file(sqlite3_file* file, const void* from, int count, sqlite3_int64 offset) {
  opened(file).body->before_change();
  DiskFile& disk = *opened(file).file;
  const std::string_view bytes(static_cast<const char*>(from), static_cast<size_t>(count));
  apply_write(disk.now, static_cast<size_t>(offset), bytes);
  disk.changes.push_back({static_cast<size_t>(offset), std::string(bytes), false});
  return SQLITE_OK;
}

int cut_file(sqlite3_file* file, sqlite3_int64 bytes) {
  opened(file).body->before_change();
  DiskFile& disk = *opened(file).file;
  apply_cut(disk.now, static_cast<size_t>(bytes));
  disk.changes.push_back({static_cast<size_t>(bytes), {}, true});
  return SQLITE_OK;
}

int sync_file(sqlite3_file* file, int) {
  opened(file).body->before_change();
  opened(file).file->sync();
  return SQLITE_OK;
}

int file_size(sqlite3_file* file, sqlite3_int64* bytes) {
  *bytes = static_cast<sqlite3_int64>(opened(file).file->now.size());
  return SQLITE_OK;
}

int lock_file(sqlite3_file*, int) {
  return SQLITE_OK;
}

int check_lock(sqlite3_file*, int* locked) {
  *locked = 0;
  return SQLITE_OK;
}

int control_file(sqlite3_file*, int, void*) {
  return SQLITE_NOTFOUND;
}

int sector_size(sqlite3_file*) {
  return kSectorBytes;
}

int characteristics(sqlite3_file*) {
  return 0;  // Nothing is promised.
}

// Of version 1: no shared memory, which a database with an exclusive lock can do without.
const sqlite3_io_methods kMethods = {
    1,         close_file, read_file,  write_file,   cut_file,    sync_file,       file_size,
    lock_file, lock_file,  check_lock, control_file, sector_size, characteristics, nullptr,
    nullptr,   nullptr,    nullptr,    nullptr,      nullptr};

Body& body_of(sqlite3_vfs* vfs) {
  return *static_cast<Body*>(vfs->pAppData);
}

int open_file(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  Body& body = body_of(vfs);
  SPILLWAY_CHECK(path != nullptr);  // No temporary files
  DiskFile& disk = body.files[path];
  if (!disk.exists) {
    disk.exists = true;
    disk.now.clear();
    disk.changes.push_back({0, {}, true});
  }
  auto& open = opened(file);
  open.base.pMethods = &kMethods;
  open.body = &body;
  open.file = &disk;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int delete_file(sqlite3_vfs* vfs, const char* path, int sync) {
  Body& body = body_of(vfs);
  const auto found = body.files.find(path);
  if (found == body.files.end() || !found->second.exists) return SQLITE_IOERR_DELETE_NOENT;
  body.before_change();
  // Not synced it may come back; then what is in it is what was.
  found->second.exists = false;
  if (sync != 0) body.files.erase(found);
  return SQLITE_OK;
}

int access_file(sqlite3_vfs* vfs, const char* path, int, int* there) {
  const auto found = body_of(vfs).files.find(path);
  *there = found != body_of(vfs).files.end() && found->second.exists ? 1 : 0;
  return SQLITE_OK;
}

}  // namespace

PowerCutDisk::PowerCutDisk(std::function<void()> before_change) : body_(std::make_unique<Body>()) {
  body_->before_change = std::move(before_change);
  body_->real = sqlite3_vfs_find(nullptr);
  SPILLWAY_CHECK(body_->real != nullptr);
  body_->vfs = *body_->real;  // Names, time, randomness
  body_->vfs.iVersion = 1;
  body_->vfs.pNext = nullptr;
  body_->vfs.zName = "power-cut";
  body_->vfs.szOsFile = sizeof(OpenFile);
  body_->vfs.pAppData = body_.get();
  body_->vfs.xOpen = open_file;
  body_->vfs.xDelete = delete_file;
  body_->vfs.xAccess = access_file;
  SPILLWAY_CHECK(sqlite3_vfs_register(&body_->vfs, 1) == SQLITE_OK);
}

PowerCutDisk::~PowerCutDisk() {
  sqlite3_vfs_unregister(&body_->vfs);
  sqlite3_vfs_register(body_->real, 1);
}

PowerCutDisk::Files PowerCutDisk::left(std::mt19937& random) const {
  Files files;
  for (const auto& [path, disk] : body_->files) {
    if (!disk.certain && random() % 2 == 0) continue;
    if (!disk.exists && random() % 2 == 0) continue;
    std::string bytes = disk.synced;
    const uint32_t likely = random() % 5;  // None, few, half, most, all of what is not synced
    for (const Change& change : disk.changes) {
      if (change.cut) {
        if (random() % 4 < likely) apply_cut(bytes, change.offset);
        continue;
      }
      for (size_t at = 0; at < change.bytes.size();) {
        const size_t offset = change.offset + at;
        const size_t count =
            std::min(kSectorBytes - offset % kSectorBytes, change.bytes.size() - at);
        if (random() % 4 < likely) {
          apply_write(bytes, offset, std::string_view(change.bytes).substr(at, count));
        }
        at += count;
      }
    }
    files[path] = std::move(bytes);
  }
  return files;
}

}  // namespace spillway::test
