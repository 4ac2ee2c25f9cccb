#include "server/batches/batch_table.h"

#include <utility>

namespace spillway {
namespace {

// `number`: never used again, so that pages go on where they ended.
constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, state INTEGER NOT NULL,"
    " record TEXT NOT NULL) STRICT;"
    "CREATE INDEX IF NOT EXISTS batches_by_state ON batches (state);";

Status no_such_batch() {
  return {Code::kNotFound, "there is no such batch"};
}

// The states that are not final, as a list in SQL.
std::string states_that_go_on() {
  std::string list;
  for (size_t i = 0; i < kBatchStates; ++i) {
    if (is_final(static_cast<BatchState>(i))) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(i);
  }
  return list;
}

// All rows of a statement whose first column is a record.
Result<std::vector<BatchRecord>> read_all(Statement& rows) {
  std::vector<BatchRecord> all;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, rows.step());
    if (!found) return all;
    SPILLWAY_ASSIGN_OR_RETURN(BatchRecord record, read_batch_record(rows.text(0)));
    all.push_back(std::move(record));
  }
}

}  // namespace

Result<std::unique_ptr<BatchTable>> BatchTable::open(const std::string& directory) {
  const std::string path = directory + "/batches.db";
  Result<Database> opened = Database::open(path, Database::Mode::kOpen);
  if (opened.status().code() == Code::kNotFound) {
    opened = Database::open(path, Database::Mode::kCreate);
  }
  if (!opened.ok()) return opened.status();
  std::unique_ptr<BatchTable> table(new BatchTable(std::move(opened).value()));
  SPILLWAY_RETURN_IF_ERROR(table->database_.execute(kSchema));
  SPILLWAY_RETURN_IF_ERROR(table->read());
  return table;
}

Status BatchTable::read() {
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement counts, database_.prepare("SELECT state, count(*) FROM batches GROUP BY state"));
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, counts.step());
    if (!found) break;
    const int64_t state = counts.integer(0);
    if (state < 0 || state >= static_cast<int64_t>(kBatchStates)) {
      return {Code::kCorruption, "a batch has no known state"};
    }
    counts_[static_cast<size_t>(state)] = counts.integer(1);
  }
  SPILLWAY_ASSIGN_OR_RETURN(Statement rows,
                            database_.prepare(("SELECT record FROM batches WHERE state IN (" +
                                               states_that_go_on() + ") ORDER BY number")
                                                  .c_str()));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<BatchRecord> unfinished, read_all(rows));
  for (const BatchRecord& record : unfinished) {
    remember(record);
    count_rows(record, 1);
  }
  return {};
}

Status BatchTable::add(const BatchRecord& record) {
  const std::lock_guard lock(mutex_);
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement row,
      database_.prepare("INSERT INTO batches (id, owner, state, record) VALUES (?, ?, ?, ?)"));
  SPILLWAY_RETURN_IF_ERROR(row.bind(record.id)
                               .bind(record.owner)
                               .bind(static_cast<int64_t>(record.state))
                               .bind(batch_record_text(record))
                               .run());
  count(record, 1);
  remember(record);
  return {};
}

const BatchRecord* BatchTable::find_unfinished(const std::string& id) const {
  const auto place = places_.find(id);
  return place == places_.end() ? nullptr : &unfinished_.at(place->second);
}

void BatchTable::remember(const BatchRecord& record) {
  const auto place = places_.find(record.id);
  if (is_final(record.state)) {
    if (place == places_.end()) return;
    unfinished_.erase(place->second);
    places_.erase(place);
    return;
  }
  if (place != places_.end()) {
    unfinished_.at(place->second) = record;
    return;
  }
  places_[record.id] = next_place_;
  unfinished_[next_place_++] = record;
}

Result<BatchRecord> BatchTable::find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  if (const BatchRecord* record = find_unfinished(id)) {
    if (record->owner != owner) return no_such_batch();
    return *record;
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement row, database_.prepare("SELECT record FROM batches WHERE id = ? AND owner = ?"));
  row.bind(id).bind(owner);
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, row.step());
  if (!found) return no_such_batch();
  return read_batch_record(row.text(0));
}

Result<BatchRecord> BatchTable::get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return get_locked(id);
}

Result<BatchRecord> BatchTable::get_locked(const std::string& id) const {
  if (const BatchRecord* record = find_unfinished(id)) return *record;
  SPILLWAY_ASSIGN_OR_RETURN(Statement row,
                            database_.prepare("SELECT record FROM batches WHERE id = ?"));
  row.bind(id);
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, row.step());
  if (!found) return no_such_batch();
  return read_batch_record(row.text(0));
}

Result<BatchRecord> BatchTable::update(const std::string& id,
                                       const std::function<Status(BatchRecord&)>& change) {
  const std::lock_guard lock(mutex_);
  SPILLWAY_ASSIGN_OR_RETURN(BatchRecord record, get_locked(id));
  const BatchRecord before = record;
  SPILLWAY_RETURN_IF_ERROR(change(record));
  SPILLWAY_ASSIGN_OR_RETURN(
      Statement write, database_.prepare("UPDATE batches SET state = ?, record = ? WHERE id = ?"));
  SPILLWAY_RETURN_IF_ERROR(write.bind(static_cast<int64_t>(record.state))
                               .bind(batch_record_text(record))
                               .bind(id)
                               .run());
  count(before, -1);
  count(record, 1);
  remember(record);
  return record;
}

Result<BatchTable::Listing> BatchTable::list(const std::string& owner, const std::string& after,
                                             int64_t limit) const {
  const std::lock_guard lock(mutex_);
  int64_t before = INT64_MAX;
  if (!after.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(
        Statement place,
        database_.prepare("SELECT number FROM batches WHERE id = ? AND owner = ?"));
    place.bind(after).bind(owner);
    SPILLWAY_ASSIGN_OR_RETURN(const bool found, place.step());
    if (!found) return no_such_batch();
    before = place.integer(0);
  }
  SPILLWAY_ASSIGN_OR_RETURN(Statement rows,
                            database_.prepare("SELECT record FROM batches WHERE owner = ? AND "
                                              "number < ? ORDER BY number DESC LIMIT ?"));
  rows.bind(owner).bind(before).bind(limit + 1);
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<BatchRecord> batches, read_all(rows));
  const bool more = static_cast<int64_t>(batches.size()) > limit;
  if (more) batches.pop_back();
  return Listing{std::move(batches), more};
}

void BatchTable::for_each_unfinished(const std::function<bool(const BatchRecord&)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [place, record] : unfinished_) {
    if (!visit(record)) return;
  }
}

void BatchTable::count(const BatchRecord& record, int64_t times) {
  counts_[static_cast<size_t>(record.state)] += times;
  count_rows(record, times);
}

void BatchTable::count_rows(const BatchRecord& record, int64_t times) {
  if (record.state == BatchState::kInProgress) rows_in_progress_ += times * record.total;
}

std::array<int64_t, kBatchStates> BatchTable::counts() const {
  std::array<int64_t, kBatchStates> counts{};
  for (size_t i = 0; i < kBatchStates; ++i) counts[i] = counts_[i];
  return counts;
}

}  // namespace spillway
