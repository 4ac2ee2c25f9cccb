#include "scheduler/journal.h"

#include <xxhash.h>

#include <array>
#include <unordered_map>

#include "scheduler/database.h"

namespace spillway {

namespace {

// "SPWJ" and the version, in SQLite's own header fields.
constexpr const char* kStamp = "PRAGMA application_id = 1397774154; PRAGMA user_version = 2";
constexpr int64_t kApplicationId = 1397774154;
constexpr int64_t kVersion = 2;
constexpr int64_t kValueMax = int64_t{1} << 40;  // Of any number in a row; sums stay in range.

constexpr const char* kSchema =
    "CREATE TABLE head (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    // result is NULL while the row runs. SQLite checks the structure of its pages, not the bytes of
    // a value (a file cut short inside its last page ends in zeros), so a result has a checksum.
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, crashes INTEGER NOT NULL DEFAULT 0,"
    " failed INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,"
    " generated_tokens INTEGER NOT NULL DEFAULT 0, result TEXT,"
    " checksum INTEGER NOT NULL DEFAULT 0) STRICT;";

// Of everything a finished row holds: XXH3-64, seeded by that of its numbers.
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

// True for what a crash inside create() leaves: a file without tables.
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

// One transaction, so that a crash leaves a whole head or none.
Status initialise(Database& database, const JournalHead& head) {
  SPILLWAY_RETURN_IF_ERROR(database.begin());
  SPILLWAY_RETURN_IF_ERROR(database.execute(kStamp));
  SPILLWAY_RETURN_IF_ERROR(database.execute(kSchema));
  SPILLWAY_RETURN_IF_ERROR(write_head(database, head));
  return database.commit();
}

Status check_head(Database& database, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Statement select,
                            database.prepare("SELECT value FROM head WHERE name = ?"));
  std::string different;
  for (const auto& [name, value] : head) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, select.bind(name).step());
    const std::string before = found ? std::string(select.text(0)) : "nothing";
    select.reset();
    if (before != value) {
      different += (different.empty() ? "" : "; ") + name + " was " + before + ", now " + value;
    }
  }
  if (different.empty()) return {};
  return invalid_argument(database.path() + " belongs to another run: " + different);
}

}  // namespace

class Journal::Body {
 public:
  explicit Body(Database opened) : database(std::move(opened)) {}

  // Reads what is there and prepares what will be written.
  Status load() {
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement all,
        database.prepare("SELECT number, crashes, failed, prompt_tokens, generated_tokens,"
                         " result IS NOT NULL, result, checksum FROM rows"));
    for (;;) {
      SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
      if (!found) break;
      const bool done = all.integer(5) != 0;
      for (const int column : {0, 1, 3, 4}) {
        if (all.integer(column) < 0 || all.integer(column) > kValueMax) {
          return corruption(database.path() + ": row " + std::to_string(all.integer(0)) +
                            " holds an impossible number");
        }
      }
      rows[all.integer(0)] = {done, all.integer(1)};
      if (!done) continue;
      const JournalRow row = {all.integer(0), all.integer(2) != 0, all.integer(3), all.integer(4),
                              all.text(6)};
      if (checksum_of(row) != all.integer(7)) {
        return damaged(database, "the result of row " + std::to_string(row.row) +
                                     " does not match its checksum");
      }
      count(row);
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        start_row, database.prepare("INSERT INTO rows (number) VALUES (?) ON CONFLICT DO NOTHING"));
    SPILLWAY_ASSIGN_OR_RETURN(
        finish_row, database.prepare(
                        "INSERT INTO rows (number, failed, prompt_tokens, generated_tokens, result,"
                        " checksum) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                        " failed = excluded.failed, prompt_tokens = excluded.prompt_tokens,"
                        " generated_tokens = excluded.generated_tokens,"
                        " result = excluded.result, checksum = excluded.checksum"));
    return {};
  }

  void count(const JournalRow& row) {
    ++counts.finished;
    counts.failed += row.failed ? 1 : 0;
    counts.prompt_tokens += row.prompt_tokens;
    counts.generated_tokens += row.generated_tokens;
  }

  struct RowState {
    bool finished = false;
    int64_t crashes = 0;
  };

  Database database;  // First: it outlives the statements.
  std::unordered_map<int64_t, RowState> rows;
  JournalCounts counts;
  Statement start_row;
  Statement finish_row;
};

Journal::Journal(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Journal::Journal(Journal&&) noexcept = default;
Journal& Journal::operator=(Journal&&) noexcept = default;
Journal::~Journal() = default;

Result<Journal> Journal::create(const std::string& path, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Database database, Database::open(path, Database::Mode::kCreate));
  SPILLWAY_RETURN_IF_ERROR(initialise(database, head));
  auto body = std::make_unique<Body>(std::move(database));
  SPILLWAY_RETURN_IF_ERROR(body->load());
  return Journal(std::move(body));
}

Result<Journal> Journal::resume(const std::string& path, const JournalHead& head) {
  SPILLWAY_ASSIGN_OR_RETURN(Database database, Database::open(path, Database::Mode::kOpen));
  SPILLWAY_ASSIGN_OR_RETURN(const bool empty, is_empty(database));
  if (empty) {
    SPILLWAY_RETURN_IF_ERROR(initialise(database, head));
  } else {
    SPILLWAY_RETURN_IF_ERROR(check_identity(database));
    SPILLWAY_RETURN_IF_ERROR(check_head(database, head));
  }
  auto body = std::make_unique<Body>(std::move(database));
  SPILLWAY_RETURN_IF_ERROR(body->load());
  return Journal(std::move(body));
}

Result<JournalCounts> Journal::inspect(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(Database database, Database::open(path, Database::Mode::kOpen));
  SPILLWAY_ASSIGN_OR_RETURN(const bool empty, is_empty(database));
  if (empty) return JournalCounts{};
  SPILLWAY_RETURN_IF_ERROR(check_identity(database));
  Body body(std::move(database));
  SPILLWAY_RETURN_IF_ERROR(body.load());
  return body.counts;
}

Status Journal::remove(const std::string& path) {
  return Database::remove(path);
}

const JournalCounts& Journal::counts() const {
  return body_->counts;
}

bool Journal::finished(int64_t row) const {
  const auto found = body_->rows.find(row);
  return found != body_->rows.end() && found->second.finished;
}

int64_t Journal::crashes(int64_t row) const {
  const auto found = body_->rows.find(row);
  return found == body_->rows.end() ? 0 : found->second.crashes;
}

Status Journal::start(std::span<const int64_t> rows) {
  SPILLWAY_RETURN_IF_ERROR(body_->database.begin());
  for (const int64_t row : rows) {
    SPILLWAY_CHECK(row > 0 && !finished(row));
    SPILLWAY_RETURN_IF_ERROR(body_->start_row.bind(row).run());
  }
  return body_->database.commit();
}

Status Journal::finish(const JournalRow& row) {
  SPILLWAY_CHECK(row.row > 0 && !finished(row.row));
  SPILLWAY_RETURN_IF_ERROR(body_->database.begin());
  SPILLWAY_RETURN_IF_ERROR(body_->finish_row.bind(row.row)
                               .bind(int64_t{row.failed})
                               .bind(row.prompt_tokens)
                               .bind(row.generated_tokens)
                               .bind(row.line)
                               .bind(checksum_of(row))
                               .run());
  body_->rows[row.row].finished = true;
  body_->count(row);
  return {};
}

Status Journal::commit() {
  return body_->database.commit();
}

Status Journal::blame_running() {
  SPILLWAY_RETURN_IF_ERROR(
      body_->database.execute("UPDATE rows SET crashes = crashes + 1 WHERE result IS NULL"));
  for (auto& [row, state] : body_->rows) state.crashes += state.finished ? 0 : 1;
  return {};
}

Status Journal::for_each(
    const std::function<Status(int64_t row, std::string_view line)>& visit) const {
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement all,
      body_->database.prepare(
          "SELECT number, result FROM rows WHERE result IS NOT NULL ORDER BY number"));
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, all.step());
    if (!found) return {};
    SPILLWAY_RETURN_IF_ERROR(visit(all.integer(0), all.text(1)));
  }
}

}  // namespace spillway
