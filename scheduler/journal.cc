#include "scheduler/journal.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>

#include "scheduler/database.h"

namespace spillway {

namespace {

// "SPWJ" and the version, in SQLite's own header fields.
constexpr const char* kStamp = "PRAGMA application_id = 1397774154; PRAGMA user_version = 3";
constexpr int64_t kApplicationId = 1397774154;
constexpr int64_t kVersion = 3;
constexpr int64_t kValueMax = int64_t{1} << 40;  // Largest number; sums stay in range

constexpr const char* kSchema =
    "CREATE TABLE head (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    // SQLite checks the structure of its pages, not the bytes of a value (a file cut short inside
    // its last page ends in zeros), so a result has a checksum.
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, failed INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL, result TEXT NOT NULL,"
    " checksum INTEGER NOT NULL) STRICT;"
    "CREATE TABLE suspects (number INTEGER PRIMARY KEY, crashes INTEGER NOT NULL,"
    " party INTEGER NOT NULL, convicted INTEGER NOT NULL) STRICT;";

// The checksum over all of a finished row: XXH3-64 of its text, seeded by that of its numbers.
int64_t checksum_of(const JournalRow& row) {
  const std::array<int64_t, 4> numbers = {row.row, int64_t{row.failed}, row.prompt_tokens,
                                          row.generated_tokens};
  return static_cast<int64_t>(XXH3_64bits_withSeed(row.line.data(), row.line.size(),
                                                   XXH3_64bits(numbers.data(), sizeof(numbers))));
}

Result<int64_t> one_integer(Database& database, const char* sql) {
  SPILLWAY_ASSIGN_OR_RETURN(Statement statement, database.prepare(sql));
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, statement.step());
  if (!found) return corruption(database.path() + ": an answer is missing");
  return statement.integer(0);
}

// Whether the file has no tables, as after a crash inside create().
Result<bool> is_empty(Database& database) {
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t id, one_integer(database, "PRAGMA application_id"));
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t tables,
                            one_integer(database, "SELECT count(*) FROM sqlite_schema"));
  return id == 0 && tables == 0;
}

Status damaged(const Database& database, const std::string& how) {
  return corruption(database.path() + ": damaged: " + how +
                    "; remove it to run every row again, or bring back a copy");
}

Status check_identity(Database& database) {
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t id, one_integer(database, "PRAGMA application_id"));
  if (id != kApplicationId) return corruption(database.path() + ": not a journal of spillway");
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t version, one_integer(database, "PRAGMA user_version"));
  if (version != kVersion) {
    return invalid_argument(database.path() + ": journal version " + std::to_string(version) +
                            ", this program knows " + std::to_string(kVersion) +
                            "; finish it with the program that began it");
  }
  SPILLWAY_ASSIGN_OR_RETURN(Statement check, database.prepare("PRAGMA quick_check(1)"));
  SPILLWAY_ASSIGN_OR_RETURN(const bool answered, check.step());
  if (!answered || check.text(0) != "ok") {
    return damaged(database, std::string(check.text(0).substr(0, 200)));
  }
  return {};
}

Status write_head(Database& database, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Statement insert, database.prepare("INSERT INTO head VALUES (?, ?)"));
  for (const auto& [name, value] : head) {
    SPILLWAY_RETURN_IF_ERROR(insert.bind(name).bind(value).run());
  }
  return {};
}

// Writes tables and head in one transaction, so that a crash leaves a whole head or none.
Status initialise(Database& database, const JournalHead& head) {
  SPILLWAY_RETURN_IF_ERROR(database.begin());
  SPILLWAY_RETURN_IF_ERROR(database.execute(kStamp));
  SPILLWAY_RETURN_IF_ERROR(database.execute(kSchema));
  SPILLWAY_RETURN_IF_ERROR(write_head(database, head));
  return database.commit();
}

Result<JournalHead> read_head(Database& database) {
  SPILLWAY_ASSIGN_OR_RETURN(Statement all, database.prepare("SELECT name, value FROM head"));
  JournalHead head;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
    if (!found) return head;
    head.emplace_back(all.text(0), all.text(1));
  }
}

}  // namespace

class Journal::Body {
 public:
  explicit Body(Database opened) : database(std::move(opened)) {}

  // Reads the journal's contents and prepares the statements for writing.
  Status load() {
    SPILLWAY_ASSIGN_OR_RETURN(head, read_head(database));
    SPILLWAY_RETURN_IF_ERROR(load_rows());
    SPILLWAY_RETURN_IF_ERROR(load_suspects());
    committed = counts;
    SPILLWAY_ASSIGN_OR_RETURN(finish_row,
                              database.prepare("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"));
    SPILLWAY_ASSIGN_OR_RETURN(suspect_row,
                              database.prepare("REPLACE INTO suspects VALUES (?, ?, ?, ?)"));
    return {};
  }

  Status load_rows() {
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement all,
        database.prepare("SELECT number, failed, prompt_tokens, generated_tokens, result, checksum"
                         " FROM rows"));
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
      if (!found) return {};
      SPILLWAY_RETURN_IF_ERROR(check_numbers(all, {0, 2, 3}));
      const JournalRow row = {all.integer(0), all.integer(1) != 0, all.integer(2), all.integer(3),
                              all.text(4)};
      if (checksum_of(row) != all.integer(5)) {
        return damaged(database, "the result of row " + std::to_string(row.row) +
                                     " does not match its checksum");
      }
      count(row);
    }
  }

  Status load_suspects() {
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement all, database.prepare("SELECT number, crashes, party, convicted FROM suspects"));
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
      if (!found) return {};
      SPILLWAY_RETURN_IF_ERROR(check_numbers(all, {0, 1, 2}));
      last_party = std::max(last_party, all.integer(2));
      suspects[all.integer(0)] = {all.integer(1), all.integer(2), all.integer(3) != 0};
    }
  }

  Status check_numbers(const Statement& row, std::initializer_list<int> columns) const {
    for (const int column : columns) {
      const int64_t least = column == 0 ? 1 : 0;
      if (row.integer(column) >= least && row.integer(column) <= kValueMax) continue;
      return corruption(database.path() + ": row " + std::to_string(row.integer(0)) +
                        " holds an impossible number");
    }
    return {};
  }

  void count(const JournalRow& row) {
    finished[row.row] = row.failed;
    ++counts.finished;
    counts.failed += row.failed ? 1 : 0;
    counts.prompt_tokens += row.prompt_tokens;
    counts.generated_tokens += row.generated_tokens;
  }

  Status commit() {
    SPILLWAY_RETURN_IF_ERROR(failure);
    if (Status status = database.commit(); !status.ok()) return fail(std::move(status));
    committed = counts;
    return {};
  }

  // SQLite takes a transaction back whose commit fails, and the next one would succeed, empty.
  Status fail(Status status) {
    failure = std::move(status);
    counts = committed;
    return failure;
  }

  Status write_suspect(int64_t row, const Suspect& suspect) {
    suspects[row] = suspect;
    return suspect_row.bind(row)
        .bind(suspect.crashes)
        .bind(suspect.party)
        .bind(int64_t{suspect.convicted})
        .run();
  }

  Database database;  // First: it outlives the statements.
  JournalHead head;
  std::unordered_map<int64_t, bool> finished;  // By row, whether it failed
  std::map<int64_t, Suspect> suspects;         // By row; includes those that have finished since
  int64_t last_party = 0;
  JournalCounts counts, committed;
  Status failure;  // Of the first write that failed
  Statement finish_row, suspect_row;
};

Journal::Journal(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Journal::Journal(Journal&&) noexcept = default;
Journal& Journal::operator=(Journal&&) noexcept = default;
Journal::~Journal() = default;

Result<Journal> Journal::create(const std::string& path, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Database database, Database::open(path, Database::Mode::kCreate));
  Journal journal(std::make_unique<Body>(std::move(database)));
  SPILLWAY_RETURN_IF_ERROR(journal.adopt(head));
  return journal;
}

Result<Journal> Journal::open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(Database database, Database::open(path, Database::Mode::kOpen));
  SPILLWAY_ASSIGN_OR_RETURN(const bool empty, is_empty(database));
  auto body = std::make_unique<Body>(std::move(database));
  if (!empty) {
    SPILLWAY_RETURN_IF_ERROR(check_identity(body->database));
    SPILLWAY_RETURN_IF_ERROR(body->load());
  }
  return Journal(std::move(body));
}

Result<Journal> Journal::resume(const std::string& path, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Journal journal, open(path));
  SPILLWAY_RETURN_IF_ERROR(journal.adopt(head));
  return journal;
}

Result<JournalCounts> Journal::inspect(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(const Journal journal, open(path));
  return journal.counts();
}

const JournalHead& Journal::head() const {
  return body_->head;
}

Status Journal::check(const JournalHead& entries) const {
  if (body_->head.empty()) return {};
  std::string different;
  for (const auto& [name, value] : entries) {
    std::string before = "nothing";
    for (const auto& [other, held] : body_->head) {
      if (other == name) before = held;
    }
    if (before == value) continue;
    different += (different.empty() ? "" : "; ") + name + " was " + before + ", now " + value;
  }
  if (different.empty()) return {};
  return invalid_argument(body_->database.path() + " belongs to another run: " + different);
}

Status Journal::adopt(const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(const bool empty, is_empty(body_->database));
  if (!empty) return check(head);
  SPILLWAY_RETURN_IF_ERROR(initialise(body_->database, head));
  return body_->load();
}

Status Journal::remove(const std::string& path) {
  return Database::remove(path);
}

Status Journal::discard(Journal journal) {
  Body& body = *journal.body_;
  body.finish_row = Statement();
  body.suspect_row = Statement();
  return Database::discard(std::move(body.database));
}

const JournalCounts& Journal::counts() const {
  return body_->counts;
}

const JournalCounts& Journal::committed() const {
  return body_->committed;
}

bool Journal::finished(int64_t row) const {
  return body_->finished.count(row) != 0;
}

const Suspect* Journal::suspect(int64_t row) const {
  const auto found = body_->suspects.find(row);
  return found == body_->suspects.end() || finished(row) ? nullptr : &found->second;
}

Status Journal::finish(const JournalRow& row) {
  SPILLWAY_CHECK(row.row > 0 && !finished(row.row));
  SPILLWAY_RETURN_IF_ERROR(body_->failure);
  Status status = body_->database.begin();
  if (status.ok()) {
    status = body_->finish_row.bind(row.row)
                 .bind(int64_t{row.failed})
                 .bind(row.prompt_tokens)
                 .bind(row.generated_tokens)
                 .bind(row.line)
                 .bind(checksum_of(row))
                 .run();
  }
  if (!status.ok()) return body_->fail(std::move(status));
  body_->count(row);
  return {};
}

Status Journal::commit() {
  return body_->commit();
}

Status Journal::blame(std::span<const int64_t> rows) {
  std::vector<int64_t> ran;
  for (const int64_t row : rows) {
    if (row > 0 && row <= kValueMax && !finished(row)) ran.push_back(row);
  }
  std::sort(ran.begin(), ran.end());
  ran.erase(std::unique(ran.begin(), ran.end()), ran.end());
  const bool alone = ran.size() == 1;
  const int64_t first_party = body_->last_party + 1;
  SPILLWAY_RETURN_IF_ERROR(body_->database.begin());
  for (size_t i = 0; i < ran.size(); ++i) {
    Suspect suspect = body_->suspects[ran[i]];
    ++suspect.crashes;
    suspect.party = first_party + (i < (ran.size() + 1) / 2 ? 0 : 1);
    suspect.convicted = alone && suspect.crashes > 1;
    SPILLWAY_RETURN_IF_ERROR(body_->write_suspect(ran[i], suspect));
  }
  body_->last_party = first_party + 1;
  return body_->commit();
}

Status Journal::forget_failed() {
  SPILLWAY_RETURN_IF_ERROR(body_->database.begin());
  for (auto& [row, suspect] : body_->suspects) {
    if (!suspect.convicted) continue;
    SPILLWAY_RETURN_IF_ERROR(body_->write_suspect(row, {1, ++body_->last_party, false}));
  }
  SPILLWAY_RETURN_IF_ERROR(body_->database.execute("DELETE FROM rows WHERE failed <> 0"));
  body_->finished.clear();
  body_->counts = {};
  SPILLWAY_RETURN_IF_ERROR(body_->load_rows());
  return body_->commit();
}

Status Journal::for_each(
    const std::function<Status(int64_t row, std::string_view line)>& visit) const {
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement all, body_->database.prepare("SELECT number, result FROM rows ORDER BY number"));
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
    if (!found) return {};
    SPILLWAY_RETURN_IF_ERROR(visit(all.integer(0), all.text(1)));
  }
}

}  // namespace spillway
