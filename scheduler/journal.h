// The journal of an offline batch: which rows are finished, with their results, and which are under
// suspicion of crashing the program, in a way that survives kill -9 and power cuts. One SQLite file
// (WAL, synchronous FULL); recovery is SQLite's.
//
// A row is a line of the input, by its number from 1; it has one result or none, because the number
// is the primary key. What is finished but not committed is lost in a crash and simply runs again.
//
// Owned by one batch; one thread. Opening takes an exclusive lock: a second process is refused.
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

// A row that ran when the program crashed. Suspects run by parties, each with nothing else beside
// it: a party that ends well is cleared by its results, and one that crashes is cut in two.
struct Suspect {
  int64_t crashes = 0;
  int64_t party = 0;
  bool convicted = false;  // It crashed the program again, alone.
};

class Journal {
 public:
  // kInvalidArgument when the file exists. A crash in here leaves a file that resume() completes.
  static Result<Journal> create(const std::string& path, const JournalHead& head);

  // kNotFound without a file; kCorruption when it is no intact journal (a result has a checksum);
  // kCapacity when another process has it open; kInvalidArgument when an entry of `head` differs,
  // naming both values. Reads and verifies the whole file.
  static Result<Journal> resume(const std::string& path, const JournalHead& head);

  // An existing journal as it is, whatever run it belongs to; head() is empty where a crash in
  // create() left it so. Errors as resume().
  static Result<Journal> open(const std::string& path);

  // What an existing journal holds, without touching it otherwise. Errors as resume().
  static Result<JournalCounts> inspect(const std::string& path);

  // Deletes the file and what SQLite keeps beside it. REQUIRES: closed. No file is OK.
  static Status remove(const std::string& path);

  // Closes a journal and deletes its file, under the lock: if somebody has deleted it meanwhile and
  // another process has its own at that path, that one stays untouched.
  static Status discard(Journal journal);

  Journal(Journal&&) noexcept;
  Journal& operator=(Journal&&) noexcept;
  ~Journal();  // Loses what was not committed.

  const JournalHead& head() const;

  // kInvalidArgument when the journal has another value for one of these, naming both; a journal
  // without a head (see open()) agrees with everything.
  Status check(const JournalHead& entries) const;

  // check() of the whole head; writes it where there is none.
  Status adopt(const JournalHead& head);

  const JournalCounts& counts() const;
  const JournalCounts& committed() const;  // The counts that a crash would leave
  bool finished(int64_t row) const;

  // Null for rows above suspicion; finished ones are.
  const Suspect* suspect(int64_t row) const;

  // Stores the row's result; safe after the next commit(). REQUIRES: not finished yet.
  Status finish(const JournalRow& row);

  Status commit();  // Blocks for the disk.

  // The program crashed while these rows ran. Finished ones and numbers below 1 are left out. One
  // row alone that crashed before is convicted; several are cut into two parties. Commits.
  Status blame(std::span<const int64_t> rows);

  // Takes the results of failed rows back, so that they run again; convicted ones get another try,
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
