// The journal of an offline batch: the finished rows with their results, and the rows suspected of
// crashing the program. It survives kill -9 and power cuts. One SQLite file (WAL, synchronous
// FULL); recovery is SQLite's.
//
// A row is a line of the input, by its number from 1; it has one result or none, because the number
// is the primary key. Rows finished but not committed are lost in a crash and run again.
//
// Owned by one batch. Thread rule: one thread. Opening takes an exclusive lock: a second process is
// refused.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace spillway {

// The settings that identify a run: input, model, everything that changes the results. A mismatch
// is reported to the user by name.
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
  std::string_view line;  // Line for the output file, without the newline
};

// A row that ran when the program crashed. Suspects run in parties, each without other rows beside
// it: a party that ends well is cleared by its results, and one that crashes is halved.
struct Suspect {
  int64_t crashes = 0;
  int64_t party = 0;
  bool convicted = false;  // It crashed the program again, alone.
};

class Journal {
 public:
  // kInvalidArgument when the file exists. A crash during create() leaves a file that resume()
  // completes.
  static Result<Journal> create(const std::string& path, const JournalHead& head);

  // kNotFound without a file; kCorruption when it is no intact journal (a result has a checksum);
  // kCapacity when another process has it open; kInvalidArgument when an entry of `head` differs,
  // naming both values. Reads and verifies the whole file.
  static Result<Journal> resume(const std::string& path, const JournalHead& head);

  // Opens an existing journal of any run; head() is empty after a crash in create(). Errors as
  // resume().
  static Result<Journal> open(const std::string& path);

  // The counts of an existing journal, read without changing it. Errors as resume().
  static Result<JournalCounts> inspect(const std::string& path);

  // Deletes the file and SQLite's files beside it. REQUIRES: closed. A missing file is OK.
  static Status remove(const std::string& path);

  // Closes a journal and deletes its file, under the lock: if the path now holds another process's
  // journal, that one is left alone.
  static Status discard(Journal journal);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();  // Drops uncommitted results.

  const JournalHead& head() const;

  // kInvalidArgument when the journal has another value for one of `entries`, naming both; a
  // journal without a head (see open()) passes.
  Status check(const JournalHead& entries) const;

  // check() of the whole head; writes it if the journal has none.
  Status adopt(const JournalHead& head);

  const JournalCounts& counts() const;
  const JournalCounts& committed() const;  // The counts that a crash would leave
  bool finished(int64_t row) const;

  // Null for rows that are not suspects, such as finished ones.
  const Suspect* suspect(int64_t row) const;

  // Stores the row's result; safe after the next commit(). REQUIRES: not finished yet.
  Status finish(const JournalRow& row);

  // Blocks for the disk. After an error of finish() or commit() what was not committed is lost:
  // counts() are those of committed(), and both give the same error from then on. (finished() still
  // answers for the lost rows: a run goes on by resume().)
  Status commit();

  // Records that the program crashed while these rows ran. Finished rows and numbers below 1 are
  // left out. A single row that crashed before is convicted; several rows are cut into two parties.
  // Commits.
  Status blame(std::span<const int64_t> rows);

  // Deletes the results of failed rows, so that they run again; convicted rows get another try,
  // alone. Commits.
  Status forget_failed();

  // Calls `visit` with every finished row by ascending number, until it returns an error.
  Status for_each(const std::function<Status(int64_t row, std::string_view line)>& visit) const;

 private:
  class Body;
  explicit Journal(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

}  // namespace spillway
