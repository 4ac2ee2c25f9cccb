#include "scheduler/database.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace spillway {

namespace {

// The database's last error as a Status that names the file.
Status failure(sqlite3* database, const std::string& path) {
  const std::string message = path + ": " + sqlite3_errmsg(database);
  switch (sqlite3_errcode(database) & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {Code::kCapacity, path + ": another process is using it"};
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
    case SQLITE_FULL:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return {Code::kIoError, message};
    default:  // SQLITE_CORRUPT, SQLITE_NOTADB, or foreign tables
      return corruption(message);
  }
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

void Database::Close::operator()(sqlite3* database) const {
  sqlite3_close_v2(database);
}

// Binding fails only for a wrong index, which is a programmer's error, or when out of memory.
Statement& Statement::bind(int64_t value) {
  SPILLWAY_CHECK(sqlite3_bind_int64(statement_.get(), ++bound_, value) == SQLITE_OK);
  return *this;
}

Statement& Statement::bind(std::string_view text) {
  SPILLWAY_CHECK(sqlite3_bind_text64(statement_.get(), ++bound_, text.data(), text.size(),
                                     SQLITE_TRANSIENT, SQLITE_UTF8) == SQLITE_OK);
  return *this;
}

Result<bool> Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  const Status status =
      code == SQLITE_DONE ? Status() : failure(sqlite3_db_handle(statement_.get()), path_);
  reset();
  if (!status.ok()) return status;
  return false;
}

Status Statement::run() {
  const Result<bool> row = step();
  SPILLWAY_CHECK(!row.ok() || !row.value());
  return row.status();
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  bound_ = 0;
}

int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string_view Statement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

Result<Database> Database::open(const std::string& path, Mode mode) {
  const bool exists = ::access(path.c_str(), F_OK) == 0;
  if (mode == Mode::kCreate && exists) return invalid_argument(path + ": exists already");
  if (mode == Mode::kOpen && !exists) return not_found(path + ": no such file");
  Database database;
  database.path_ = path;
  sqlite3* handle = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | (mode == Mode::kCreate ? SQLITE_OPEN_CREATE : 0);
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  database.database_.reset(handle);
  if (code != SQLITE_OK) return failure(handle, path);
  SPILLWAY_RETURN_IF_ERROR(database.configure());
  // Without a stat (SQLite may use a file system of its own) the file is never treated as ours.
  if (struct stat info{}; ::stat(path.c_str(), &info) == 0) {
    database.device_ = info.st_dev;
    database.inode_ = info.st_ino;
  }
  return database;
}

Status Database::configure() {
  for (const int off : {SQLITE_DBCONFIG_TRUSTED_SCHEMA, SQLITE_DBCONFIG_ENABLE_TRIGGER,
                        SQLITE_DBCONFIG_ENABLE_VIEW}) {
    sqlite3_db_config(database_.get(), off, 0, nullptr);
  }
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  // With an exclusive lock WAL needs no shared memory, so network file systems work, too. The lock
  // is taken by the first access, not by the pragma. EXTRA is FULL, and makes certain that the
  // rollback journal of the change to WAL is gone: if a power cut restored it, it would be applied
  // over everything that was committed since.
  return execute(
      "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = EXTRA; PRAGMA journal_mode = WAL;"
      "BEGIN IMMEDIATE; COMMIT");
}

Status Database::remove(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const std::string name = path + suffix;
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) return io_error("remove " + name, errno);
  }
  return {};
}

Status Database::discard(Database database) {
  struct stat info {};
  const bool ours = ::stat(database.path_.c_str(), &info) == 0 && info.st_dev == database.device_ &&
                    info.st_ino == database.inode_;
  if (!ours) {
    // Closing would delete the write-ahead log by name, which is now another process's file.
    sqlite3_db_config(database.database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    return {};
  }
  // Without a write-ahead log closing deletes nothing, so the names may go under the lock.
  SPILLWAY_RETURN_IF_ERROR(database.execute("PRAGMA journal_mode = DELETE"));
  return remove(database.path_);
}

Status Database::execute(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return failure(database_.get(), path_);
}

Result<Statement> Database::prepare(const char* sql) {
  sqlite3_stmt* handle = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql, -1, &handle, nullptr) != SQLITE_OK) {
    return failure(database_.get(), path_);
  }
  Statement statement;
  statement.statement_.reset(handle);
  statement.path_ = path_;
  return statement;
}

Status Database::begin() {
  return sqlite3_get_autocommit(database_.get()) == 0 ? Status() : execute("BEGIN IMMEDIATE");
}

Status Database::commit() {
  return sqlite3_get_autocommit(database_.get()) != 0 ? Status() : execute("COMMIT");
}

}  // namespace spillway
