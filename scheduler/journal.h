// The journal of an offline batch: which rows have started, which are finished, and their results,
// in a way that survives kill -9 and power cuts. One SQLite file (WAL, synchronous FULL); recovery
// is SQLite's.
//
// A row is a line of the input, by its number from 1; it has one result or none, because the number
// is the primary key. What is finished but not committed is lost in a crash and simply runs again.
//
// Owned by one batch; one thread. Opening takes an exclusive lock: a second process is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// What makes two runs the same run: input, model, everything that changes the results. Names and
// values are for people, too: a mismatch is reported by name.
using JournalHead = std::vector<std::pair<std::string, std::string>>;

struct JournalCounts {
  int64_t finished = 0;
  int64_t failed = 0;  // Among the finished
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};

struct JournalRow {
  int64_t row = 0;  // > 0
  bool failed = false;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  std::string_view line;  // What the output file will hold, without the newline
};

class Journal {
 public:
  // kInvalidArgument when the file exists. A crash in here leaves a file that resume() completes.
  static Result<Journal> create(const std::string& path, const JournalHead& head);

  // kNotFound without a file; kCorruption when it is no intact journal (a result has a checksum);
  // kCapacity when another process has it open; kInvalidArgument when an entry of `head` differs,
  // naming both values. Reads and verifies the whole file.
  static Result<Journal> resume(const std::string& path, const JournalHead& head);

  // What an existing journal holds, without touching it otherwise. Errors as resume().
  static Result<JournalCounts> inspect(const std::string& path);

  // Deletes the file and what SQLite keeps beside it. REQUIRES: closed. No file is OK.
  static Status remove(const std::string& path);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();  // Loses what was not committed.

  const JournalCounts& counts() const;
  bool finished(int64_t row) const;

  // How often the program has crashed with this row running.
  int64_t crashes(int64_t row) const;

  // Notes that the rows are about to run, and commits everything so far. Blocks for the disk.
  Status start(std::span<const int64_t> rows);

  // Stores the row's result; safe after the next commit() or start(). REQUIRES: not finished yet.
  Status finish(const JournalRow& row);

  Status commit();  // Blocks for the disk.

  // The program crashed in the last run: blames each row that had started and not finished. Call
  // once, before anything starts. Commits.
  Status blame_running();

  // Calls `visit` with every finished row by ascending number, until it returns an error.
  Status for_each(const std::function<Status(int64_t row, std::string_view line)>& visit) const;

 private:
  class Body;
  explicit Journal(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

}  // namespace spillway
