// One SQLite file for state that must survive a crash: exclusive lock while open, WAL, every commit
// reaches the disk, and a file that others may have written is not trusted.
//
// Thread rule: a Database and its Statements belong to one thread; the Database outlives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace spillway {

// A prepared statement. Columns and parameters count from 0 and 1, as in SQLite.
class Statement {
 public:
  Statement() = default;

  // Binds the parameters in order; texts are copied.
  Statement& bind(int64_t value);
  Statement& bind(std::string_view text);

  // The next row: true, or false at the end, which resets the statement for its next use.
  Result<bool> step();
  Status run();  // For statements without rows.
  void reset();  // Ends a query before its last row

  int64_t integer(int column) const;
  std::string_view text(int column) const;  // Until the next step.

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::string path_;
  int bound_ = 0;
};

class Database {
 public:
  enum class Mode : uint8_t { kCreate, kOpen };

  // kCreate: kInvalidArgument when the file exists. kOpen: kNotFound without one. Both: kCapacity
  // when another process has it open, kCorruption when the bytes are not an intact database.
  static Result<Database> open(const std::string& path, Mode mode);

  // Deletes the file and SQLite's files beside it. REQUIRES: closed. A missing file is OK.
  static Status remove(const std::string& path);

  // Closes an open database and deletes its file while no other process can have it open; if the
  // path now holds another process's file, that file is left alone.
  static Status discard(Database database);

  Status execute(const char* sql);
  Result<Statement> prepare(const char* sql);

  // A transaction: writes between begin() and commit() happen all or not at all. begin() inside a
  // transaction and commit() outside one do nothing. commit() blocks for the disk.
  Status begin();
  Status commit();

  const std::string& path() const { return path_; }

 private:
  Database() = default;
  Status configure();

  struct Close {
    void operator()(sqlite3* database) const;
  };
  std::unique_ptr<sqlite3, Close> database_;
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;  // The opened file's
};

}  // namespace spillway
