#include "server/batches/file_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "kernels/base/units.h"
#include "server/http/random_id.h"

namespace spillway {
namespace {

constexpr const char* kFilesSchema =
    "CREATE TABLE IF NOT EXISTS files (id TEXT PRIMARY KEY, owner TEXT NOT NULL,"
    " name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,"
    " created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT;"
    "CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, created_at);";
constexpr const char* kColumns = "id, owner, name, purpose, bytes, created_at, expires_at";
constexpr int64_t kNever = 0;  // In the column expires_at
constexpr size_t kGoneMax = 10'000;

std::string sql(const std::string& rest) {
  return std::string("SELECT ") + kColumns + " FROM files " + rest;
}

StoredFile read_row(const Statement& row) {
  StoredFile file;
  file.id = row.text(0);
  file.owner = row.text(1);
  file.name = row.text(2);
  file.purpose = row.text(3);
  file.bytes = row.integer(4);
  file.created_at = row.integer(5);
  if (row.integer(6) != kNever) file.expires_at = row.integer(6);
  return file;
}

Status no_such_file() {
  return {Code::kNotFound, "there is no such file"};
}

Result<Database> open_database(const std::string& path) {
  Result<Database> opened = Database::open(path, Database::Mode::kOpen);
  if (opened.status().code() != Code::kNotFound) return opened;
  return Database::open(path, Database::Mode::kCreate);
}

}  // namespace

FileStore::FileStore(std::string directory, const FileLimits& limits, Database database)
    : directory_(std::move(directory)), limits_(limits), database_(std::move(database)) {}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::string& directory,
                                                   const FileLimits& limits) {
  std::error_code error;
  std::filesystem::create_directories(directory + "/files", error);
  if (error) return Status(Code::kIoError, directory + "/files: " + error.message());
  SPILLWAY_ASSIGN_OR_RETURN(Database database, open_database(directory + "/store.db"));
  std::unique_ptr<FileStore> store(new FileStore(directory, limits, std::move(database)));
  SPILLWAY_RETURN_IF_ERROR(store->make_tables());
  SPILLWAY_RETURN_IF_ERROR(store->remove_strays());
  return store;
}

Status FileStore::make_tables() {
  SPILLWAY_RETURN_IF_ERROR(database_.execute(kFilesSchema));
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement sums,
      database_.prepare("SELECT owner, sum(bytes), count(*) FROM files GROUP BY owner"));
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, sums.step());
    if (!found) return {};
    held_[std::string(sums.text(0))] = {sums.integer(1), sums.integer(2)};
  }
}

// Contents without a row: of uploads, and of files whose removal a crash cut short.
Status FileStore::remove_strays() {
  std::set<std::string, std::less<>> known;
  SPILLWAY_ASSIGN_OR_RETURN(Statement ids, database_.prepare("SELECT id FROM files"));
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, ids.step());
    if (!found) break;
    known.emplace(ids.text(0));
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/files", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("file-") && !known.contains(name)) ::unlink(entry.path().c_str());
  }
  if (error) return {Code::kIoError, directory_ + "/files: " + error.message()};
  return {};
}

std::string FileStore::path_of(const std::string& id) const {
  return directory_ + "/files/" + id;
}

Status FileStore::check_room(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(owner);
  if (held == held_.end()) return {};
  if (held->second.bytes >= limits_.owner_bytes_max) {
    return {Code::kCapacity, "your files take " +
                                 format_bytes(static_cast<uint64_t>(held->second.bytes)) +
                                 ", all that they may; delete some"};
  }
  return check_count(held->second.files);
}

Status FileStore::take(const std::string& owner, int64_t bytes, bool limited) {
  const std::lock_guard lock(mutex_);
  Held& held = held_[owner];
  if (limited && bytes > limits_.owner_bytes_max - held.bytes) {
    return {Code::kCapacity, "your files would take more than " +
                                 format_bytes(static_cast<uint64_t>(limits_.owner_bytes_max)) +
                                 " in all; delete some"};
  }
  held.bytes += bytes;
  return {};
}

void FileStore::give_back(const std::string& owner, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Held& held = held_[owner];
  held.bytes -= bytes;
  --held.files;
}

FileStore::Upload::~Upload() {
  if (store_ == nullptr) return;
  ::unlink(file_.path().c_str());
  store_->give_back(owner_, bytes_);
}

Status FileStore::Upload::append(std::string_view bytes) {
  const auto count = static_cast<int64_t>(bytes.size());
  if (limited_ && count > store_->limits_.file_bytes_max - bytes_) {
    return {Code::kCapacity, "a file has at most " + format_bytes(static_cast<uint64_t>(
                                                         store_->limits_.file_bytes_max))};
  }
  SPILLWAY_RETURN_IF_ERROR(store_->take(owner_, count, limited_));
  const auto offset = static_cast<uint64_t>(bytes_);
  bytes_ += count;  // Given back with the upload, whether they were written or not
  return file_.write(offset, std::as_bytes(std::span(bytes.data(), bytes.size())));
}

Result<FileStore::Upload> FileStore::begin(const std::string& owner) {
  return begin(owner, /*limited=*/true);
}

Result<FileStore::Upload> FileStore::begin_results(const std::string& owner) {
  return begin(owner, /*limited=*/false);
}

Status FileStore::check_count(int64_t files) const {
  if (files < limits_.owner_files_max) return {};
  return {Code::kCapacity,
          "you have " + std::to_string(files) + " files, the most that are kept; delete some"};
}

Result<FileStore::Upload> FileStore::begin(const std::string& owner, bool limited) {
  {
    const std::lock_guard lock(mutex_);
    Held& held = held_[owner];
    if (limited) SPILLWAY_RETURN_IF_ERROR(check_count(held.files));
    ++held.files;
  }
  std::string id = "file-" + random_hex(24);
  const std::string path = path_of(id) + ".part";
  Result<File> file = File::open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!file.ok()) {
    give_back(owner, 0);
    return file.status();
  }
  return Upload(this, std::move(id), owner, std::move(file).value(), limited);
}

Result<StoredFile> FileStore::keep(Upload upload, const std::string& name,
                                   const std::string& purpose, int64_t now,
                                   std::optional<int64_t> expires_at) {
  const StoredFile kept{upload.id_, upload.owner_, name, purpose, upload.bytes_, now, expires_at};
  SPILLWAY_RETURN_IF_ERROR(upload.file_.sync());
  const std::string path = path_of(kept.id);
  if (::rename(upload.file_.path().c_str(), path.c_str()) != 0) {
    return Status(Code::kIoError, path + ": " + std::strerror(errno));
  }
  const auto insert = [&]() -> Status {
    SPILLWAY_RETURN_IF_ERROR(sync_directory_of(path));
    const std::lock_guard lock(mutex_);
    SPILLWAY_ASSIGN_OR_RETURN(Statement row,
                              database_.prepare("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)"));
    return row.bind(kept.id)
        .bind(kept.owner)
        .bind(kept.name)
        .bind(kept.purpose)
        .bind(kept.bytes)
        .bind(kept.created_at)
        .bind(kept.expires_at.value_or(kNever))
        .run();
  };
  if (const Status status = insert(); !status.ok()) {
    ::unlink(path.c_str());
    return status;
  }
  upload.store_.reset();
  return kept;
}

Result<StoredFile> FileStore::find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return find_locked(owner, id);
}

Result<StoredFile> FileStore::find_locked(const std::string& owner, const std::string& id) const {
  SPILLWAY_ASSIGN_OR_RETURN(Statement row,
                            database_.prepare(sql("WHERE id = ? AND owner = ?").c_str()));
  row.bind(id).bind(owner);
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, row.step());
  if (!found) return no_such_file();
  return read_row(row);
}

// Rows are in the order in which they were written; so is their rowid.
Result<int64_t> FileStore::place_of(const std::string& owner, const std::string& id) const {
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement place, database_.prepare("SELECT rowid FROM files WHERE id = ? AND owner = ?"));
  place.bind(id).bind(owner);
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, place.step());
  if (found) return place.integer(0);
  const auto gone = std::find_if(gone_.begin(), gone_.end(), [&](const Gone& file) {
    return file.id == id && file.owner == owner;
  });
  if (gone == gone_.end()) return no_such_file();
  return gone->place;
}

Result<FileStore::Listing> FileStore::list(const std::string& owner, const Page& page) const {
  const std::lock_guard lock(mutex_);
  int64_t from = 0;
  if (!page.after.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(from, place_of(owner, page.after));
  }
  const bool up = page.ascending;
  std::string where = "WHERE owner = ?";
  if (!page.purpose.empty()) where += " AND purpose = ?";
  if (from > 0) where += up ? " AND rowid > ?" : " AND rowid < ?";
  where += up ? " ORDER BY rowid ASC LIMIT ?" : " ORDER BY rowid DESC LIMIT ?";
  SPILLWAY_ASSIGN_OR_RETURN(Statement rows, database_.prepare(sql(where).c_str()));
  rows.bind(owner);
  if (!page.purpose.empty()) rows.bind(page.purpose);
  if (from > 0) rows.bind(from);
  rows.bind(page.limit + 1);
  Listing listing;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, rows.step());
    if (!found) return listing;
    if (static_cast<int64_t>(listing.files.size()) == page.limit) {
      listing.more = true;
      rows.reset();
      return listing;
    }
    listing.files.push_back(read_row(rows));
  }
}

Status FileStore::remove(const std::string& owner, const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    SPILLWAY_ASSIGN_OR_RETURN(const StoredFile file, find_locked(owner, id));
    SPILLWAY_ASSIGN_OR_RETURN(const int64_t place, place_of(owner, id));
    SPILLWAY_ASSIGN_OR_RETURN(Statement row,
                              database_.prepare("DELETE FROM files WHERE id = ? AND owner = ?"));
    SPILLWAY_RETURN_IF_ERROR(row.bind(id).bind(owner).run());
    Held& held = held_[owner];
    held.bytes -= file.bytes;
    --held.files;
    gone_.push_back({id, owner, place});
    if (gone_.size() > kGoneMax) gone_.pop_front();
  }
  ::unlink(path_of(id).c_str());  // What stays is removed by the next start.
  return {};
}

Status FileStore::remove_named(const std::string& owner, const std::string& purpose,
                               const std::string& name) {
  std::vector<std::string> ids;
  {
    const std::lock_guard lock(mutex_);
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement rows,
        database_.prepare("SELECT id FROM files WHERE owner = ? AND purpose = ? AND name = ?"));
    rows.bind(owner).bind(purpose).bind(name);
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, rows.step());
      if (!found) break;
      ids.emplace_back(rows.text(0));
    }
  }
  for (const std::string& id : ids) {
    const Status removed = remove(owner, id);
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  }
  return {};
}

Result<std::vector<std::string>> FileStore::expire(int64_t now,
                                                   const std::set<std::string>& in_use) {
  std::vector<StoredFile> expired;
  {
    const std::lock_guard lock(mutex_);
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement rows,
        database_.prepare(sql("WHERE expires_at <> 0 AND expires_at <= ?").c_str()));
    rows.bind(now);
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, rows.step());
      if (!found) break;
      StoredFile file = read_row(rows);
      if (!in_use.contains(file.id)) expired.push_back(std::move(file));
    }
  }
  std::vector<std::string> ids;
  for (const StoredFile& file : expired) {
    const Status removed = remove(file.owner, file.id);
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
    ids.push_back(file.id);
  }
  return ids;
}

}  // namespace spillway
