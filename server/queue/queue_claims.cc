#include "server/queue/queue_claims.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "server/queue/queue_jobs.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

// A claim whose owner vanished is cut in so many parts, so that a row that ends the program is soon
// alone and the others get their results.
constexpr int64_t kParts = 8;
constexpr int64_t kApartFrom = 2;     // Crashes
constexpr int64_t kAloneCrashes = 2;  // Of a row that is set down for ending the program

// What a job asks of a worker, as $1 to $5: models, identity, format, KV format, KV rule.
#define SPILLWAY_JOB_FITS                                              \
  "NOT j.ended AND (j.deadline IS NULL OR j.deadline > now())"         \
  " AND j.model = ANY($1) AND (j.identity IS NULL OR j.identity = $2)" \
  " AND (j.format IS NULL OR j.format = $3)"                           \
  " AND (j.kv_format IS NULL OR j.kv_format = $4) AND (j.kv_rule IS NULL OR j.kv_rule = $5)"

#define SPILLWAY_URGENCY "j.priority, coalesce(j.deadline, 'infinity'), j.id"

PgParameters what_fits(const QueueWorker& worker) {
  PgParameters parameters;
  parameters.texts(worker.models).text(worker.identity);
  parameters.text(worker.format).text(worker.kv_format).text(worker.kv_rule);
  return parameters;
}

uint64_t seed_of(std::string_view text) {
  uint64_t seed = 0;
  std::from_chars(text.data(), text.data() + text.size(), seed);
  return seed;
}

// A claim that was given back, or whose owner vanished.
struct OpenClaim {
  int64_t id = 0;  // 0: there is none
  int64_t priority = 0;
  std::string deadline;  // "infinity": none
  int64_t job = 0, job_rows = 0;
  std::string input_hash, run_id, seed;
  int64_t first = 0, last = 0, generation = 0;
  int64_t crashes = 0, alone_crashes = 0, faults = 0, attempts_max = 0;
  bool vanished = false;  // It has an owner, whose lease is over.
  bool alone = false;     // It ran with nothing beside it.
  std::string cause;
};

// $6: also what others hold whose lease is over; $7: the worker. (No join with workers: the row
// that is locked would be checked again with the worker that it had before.)
#define SPILLWAY_OPEN_CLAIM                                                                  \
  "SELECT c.id, j.priority, coalesce(j.deadline, 'infinity')::text, j.id, j.rows,"           \
  " j.input_hash, coalesce(j.run_id, ''), j.seed, c.first, c.last, c.generation, c.crashes," \
  " c.alone_crashes, c.faults, j.attempts_max, c.worker IS NOT NULL, c.alone,"               \
  " coalesce(c.cause, '')"                                                                   \
  " FROM spillway.claims c JOIN spillway.jobs j ON j.id = c.job"                             \
  " WHERE NOT c.set_aside AND c.not_before <= now() AND (c.worker IS NULL OR ($6"            \
  " AND c.worker <> $7 AND NOT EXISTS (SELECT FROM spillway.workers w"                       \
  " WHERE w.id = c.worker AND w.expires >= now())))"                                         \
  " AND " SPILLWAY_JOB_FITS " ORDER BY " SPILLWAY_URGENCY ", c.crashes > 0 LIMIT 1"

constexpr const char* kOpenClaim = SPILLWAY_OPEN_CLAIM;
constexpr const char* kLockedOpenClaim = SPILLWAY_OPEN_CLAIM " FOR UPDATE OF c SKIP LOCKED";

Result<OpenClaim> open_claim(PgConnection& connection, const QueueWorker& worker, bool take_over,
                             bool lock) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows rows, connection.query(lock ? kLockedOpenClaim : kOpenClaim,
                                          what_fits(worker).boolean(take_over).integer(worker.id)));
  OpenClaim open;
  if (rows.size() == 0) return open;
  open.id = rows.integer(0, 0);
  open.priority = rows.integer(0, 1);
  open.deadline = rows.text(0, 2);
  open.job = rows.integer(0, 3);
  open.job_rows = rows.integer(0, 4);
  open.input_hash = rows.text(0, 5);
  open.run_id = rows.text(0, 6);
  open.seed = rows.text(0, 7);
  open.first = rows.integer(0, 8);
  open.last = rows.integer(0, 9);
  open.generation = rows.integer(0, 10);
  open.crashes = rows.integer(0, 11);
  open.alone_crashes = rows.integer(0, 12);
  open.faults = rows.integer(0, 13);
  open.attempts_max = rows.integer(0, 14);
  open.vanished = rows.boolean(0, 15);
  open.alone = rows.boolean(0, 16);
  open.cause = rows.text(0, 17);
  return open;
}

// A row that has no result, without its line.
struct RowPlace {
  int64_t position = 0;
  int64_t bytes = 0;
};

// Whether row i of the inputs has no result. (With OFFSET 0 the planner asks for each row by the
// key; without it, it makes a join, and before it has statistics that may read all results of a
// job.)
#define SPILLWAY_NO_RESULT                                                           \
  "NOT EXISTS (SELECT FROM spillway.results r WHERE r.job = i.job AND r.row = i.row" \
  " OFFSET 0)"

Result<std::vector<RowPlace>> places_between(PgConnection& connection, int64_t job, int64_t first,
                                             int64_t last) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows found,
      connection.query("SELECT i.position, octet_length(i.line) FROM spillway.inputs i"
                       " WHERE i.job = $1 AND i.position BETWEEN $2 AND $3"
                       " AND " SPILLWAY_NO_RESULT " ORDER BY i.position",
                       PgParameters().integer(job).integer(first).integer(last)));
  std::vector<RowPlace> places;
  for (int64_t row = 0; row < found.size(); ++row) {
    places.push_back({found.integer(row, 0), found.integer(row, 1)});
  }
  return places;
}

// How many of the first rows there is room for: one at least.
int64_t rows_within(const std::vector<RowPlace>& places, const ClaimRoom& room) {
  int64_t rows = 0, bytes = 0;
  for (const RowPlace& place : places) {
    bytes += place.bytes;
    if (rows > 0 && (rows >= room.rows || bytes > room.bytes)) break;
    ++rows;
  }
  return rows;
}

Status fetch_lines(PgConnection& connection, const std::vector<RowPlace>& places, int64_t count,
                   Claim* claim) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(places[static_cast<size_t>(i)].position);
  if (positions.empty()) return {};
  // The range is for the index, which a list alone may be looked for in from end to end.
  PgParameters wanted;
  wanted.integer(claim->job).integer(positions.front()).integer(positions.back());
  wanted.integers(positions);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows found,
      connection.query("SELECT i.row, i.position, i.flags, i.line FROM spillway.inputs i"
                       " WHERE i.job = $1 AND i.position BETWEEN $2 AND $3"
                       " AND i.position = ANY($4) ORDER BY i.position",
                       wanted));
  for (int64_t row = 0; row < found.size(); ++row) {
    const int64_t flags = found.integer(row, 2);
    claim->rows.push_back({found.integer(row, 0), found.integer(row, 1), (flags & 1) != 0,
                           (flags & 2) != 0, found.text(row, 3)});
  }
  return {};
}

// A job gets its run's name from the first worker that claims of it, whichever way.
Status name_run(PgConnection& connection, const QueueWorker& worker, const std::string& input_hash,
                Claim* claim) {
  if (!claim->run_id.empty()) return {};
  PgParameters named;
  named.integer(claim->job).text(worker.run_id(input_hash, claim->seed));
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows name, connection.query("UPDATE spillway.jobs SET run_id = coalesce(run_id, $2)"
                                          " WHERE id = $1 RETURNING run_id",
                                          named));
  if (name.size() > 0) claim->run_id = name.text(0, 0);
  return {};
}

// Drawn, so that a claim that a crash of the database loses is not taken for the next of its id.
int64_t first_generation() {
  static std::mutex mutex;
  static std::mt19937_64 random{std::random_device()()};
  const std::lock_guard lock(mutex);
  return static_cast<int64_t>(random() >> 2);
}

// Rows of a claim that others may take now.
Status add_open(PgConnection& connection, const OpenClaim& of, const RowPlace& first,
                const RowPlace& last) {
  PgParameters rest;
  rest.integer(of.job).integer(first.position).integer(last.position);
  rest.integer(first_generation()).integer(of.crashes).integer(of.alone_crashes);
  rest.integer(of.faults).optional_text(of.cause);
  return connection
      .query(
          "INSERT INTO spillway.claims (job, first, last, generation, crashes, alone_crashes,"
          " faults, cause) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
          rest)
      .status();
}

// Takes an open claim, or its first rows; the rest becomes claims of its own. None: all its rows
// have results.
Result<std::optional<Claim>> take(PgConnection& connection, const QueueWorker& worker,
                                  OpenClaim open, const ClaimRoom& room) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<RowPlace> places,
                            places_between(connection, open.job, open.first, open.last));
  if (places.empty()) {
    SPILLWAY_RETURN_IF_ERROR(
        connection
            .query("DELETE FROM spillway.claims WHERE id = $1", PgParameters().integer(open.id))
            .status());
    return std::optional<Claim>();
  }
  const auto rows = static_cast<int64_t>(places.size());
  // A claim apart that had not begun is not why its worker vanished.
  const bool suspect = open.vanished && (open.crashes < kApartFrom || open.alone);
  if (suspect) {
    ++open.crashes;
    if (open.alone && rows == 1) ++open.alone_crashes;
  }
  const int64_t part = suspect ? (rows + kParts - 1) / kParts : rows;
  const int64_t mine = rows_within(places, {std::min(room.rows, part), room.bytes});
  for (int64_t first = mine; first < rows;) {
    const int64_t next = std::min(rows, first < part ? part : first + part);
    SPILLWAY_RETURN_IF_ERROR(add_open(connection, open, places[static_cast<size_t>(first)],
                                      places[static_cast<size_t>(next - 1)]));
    first = next;
  }
  Claim claim;
  claim.id = open.id;
  claim.generation = open.generation + 1;
  claim.job = open.job;
  claim.job_rows = open.job_rows;
  claim.run_id = open.run_id;
  claim.seed = seed_of(open.seed);
  claim.apart = open.crashes >= kApartFrom;
  claim.convicted =
      mine == 1 && open.crashes >= open.attempts_max && open.alone_crashes >= kAloneCrashes;
  PgParameters taken;
  taken.integer(open.id).integer(places.front().position);
  taken.integer(places[static_cast<size_t>(mine - 1)].position).integer(worker.id);
  taken.integer(claim.generation).integer(open.crashes).integer(open.alone_crashes);
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("UPDATE spillway.claims SET first = $2, last = $3, worker = $4, generation = $5,"
                 " crashes = $6, alone_crashes = $7, alone = false WHERE id = $1",
                 taken)
          .status());
  SPILLWAY_RETURN_IF_ERROR(name_run(connection, worker, open.input_hash, &claim));
  SPILLWAY_RETURN_IF_ERROR(fetch_lines(connection, places, mine, &claim));
  return std::optional<Claim>(std::move(claim));
}

// The urgency up to which new rows go before an open claim.
struct Urgency {
  int64_t priority = INT32_MAX;
  std::string deadline = "infinity";
  int64_t job = INT64_MAX;
};

// One statement, so that the job is locked only while the server is at it, and others that claim do
// not wait for this client. The last rows are shared out, so that no worker has many of them while
// others have none. $6 to $8: the urgency that a job must have at least; $9: room, $10: the worker,
// $11: the generation. It does not wait for the disk: a claim that a crash of the server loses is
// made anew, by anyone, and its owner finds out when it writes.
constexpr const char* kClaimNew =
    "WITH job AS (SELECT j.id, j.next_position AS first,"
    " least($9, greatest(1, ceil((j.rows - j.next_position + 1)::float8 / (2 * greatest(1,"
    " (SELECT count(*) FROM spillway.workers w WHERE w.expires > now() AND w.identity = $2))))))"
    "::bigint AS size FROM spillway.jobs j WHERE j.next_position <= j.rows"
    " AND (j.priority, coalesce(j.deadline, 'infinity'), j.id) <= ($6, $7::timestamptz, $8)"
    " AND " SPILLWAY_JOB_FITS " ORDER BY " SPILLWAY_URGENCY
    " LIMIT 1 FOR UPDATE),"
    " moved AS (UPDATE spillway.jobs j SET next_position = job.first + job.size,"
    " identity = coalesce(j.identity, $2), started = coalesce(j.started, now())"
    " FROM job WHERE j.id = job.id"
    " RETURNING j.id, j.rows, j.input_hash, j.run_id, j.seed, job.first, job.size),"
    " made AS (INSERT INTO spillway.claims (job, first, last, worker, generation)"
    " SELECT m.id, m.first, m.first + m.size - 1, $10, $11 FROM moved m"
    " RETURNING id, first, last)"
    " SELECT made.id, m.id, m.rows, m.input_hash, coalesce(m.run_id, ''), m.seed,"
    " made.first, made.last, set_config('synchronous_commit', 'off', true) FROM moved m, made";

// What is more than there is room for, lines being longer than those before, is for others.
Status keep_first(PgConnection& connection, const Claim& claim, const std::vector<RowPlace>& places,
                  int64_t mine) {
  if (mine == static_cast<int64_t>(places.size())) return {};
  return in_transaction(connection, [&]() -> Status {
    PgParameters kept;
    kept.integer(claim.id).integer(claim.generation);
    kept.integer(places[static_cast<size_t>(mine - 1)].position);
    SPILLWAY_RETURN_IF_ERROR(
        connection
            .query("UPDATE spillway.claims SET last = $3 WHERE id = $1 AND generation = $2", kept)
            .status());
    OpenClaim rest;
    rest.job = claim.job;
    return add_open(connection, rest, places[static_cast<size_t>(mine)], places.back());
  });
}

// Claims rows that nobody had before, of a job that is at least so urgent.
Result<std::optional<Claim>> take_new(PgConnection& connection, const QueueWorker& worker,
                                      const Urgency& urgency, const ClaimRoom& room) {
  Claim claim;
  claim.generation = first_generation();
  PgParameters wanted = what_fits(worker);
  wanted.integer(urgency.priority).text(urgency.deadline).integer(urgency.job);
  wanted.integer(room.rows).integer(worker.id).integer(claim.generation);
  SPILLWAY_ASSIGN_OR_RETURN(const PgRows made, connection.query(kClaimNew, wanted));
  if (made.size() == 0) return std::optional<Claim>();
  claim.id = made.integer(0, 0);
  claim.job = made.integer(0, 1);
  claim.job_rows = made.integer(0, 2);
  claim.run_id = made.text(0, 4);
  claim.seed = seed_of(made.text(0, 5));
  SPILLWAY_RETURN_IF_ERROR(name_run(connection, worker, made.text(0, 3), &claim));
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::vector<RowPlace> places,
      places_between(connection, claim.job, made.integer(0, 6), made.integer(0, 7)));
  const int64_t mine = rows_within(places, room);
  SPILLWAY_RETURN_IF_ERROR(keep_first(connection, claim, places, mine));
  SPILLWAY_RETURN_IF_ERROR(fetch_lines(connection, places, mine, &claim));
  if (claim.rows.empty()) return std::optional<Claim>();  // The job was deleted meanwhile.
  return std::optional<Claim>(std::move(claim));
}

std::vector<int64_t> ids_of(const std::vector<ClaimId>& claims) {
  std::vector<int64_t> ids;
  for (const ClaimId& claim : claims) ids.push_back(claim.id);
  return ids;
}

std::vector<int64_t> generations_of(const std::vector<ClaimId>& claims) {
  std::vector<int64_t> generations;
  for (const ClaimId& claim : claims) generations.push_back(claim.generation);
  return generations;
}

// Locks those of the claims that are still the worker's.
Result<std::set<int64_t>> hold(PgConnection& connection, const QueueWorker& worker,
                               const std::vector<ClaimId>& claims) {
  PgParameters named;
  named.integers(ids_of(claims)).integers(generations_of(claims)).integer(worker.id);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows rows,
      connection.query("SELECT c.id FROM spillway.claims c"
                       " JOIN unnest($1::bigint[], $2::bigint[]) AS u (id, generation)"
                       " ON c.id = u.id AND c.generation = u.generation"
                       " WHERE c.worker = $3 ORDER BY c.id FOR UPDATE OF c",
                       named));
  std::set<int64_t> held;
  for (int64_t row = 0; row < rows.size(); ++row) held.insert(rows.integer(row, 0));
  return held;
}

// Adds to a job's counts, and ends it with its last row. False: it had ended before.
Result<bool> count_rows(PgConnection& connection, const PgRows& counts, int64_t at,
                        int64_t job_rows) {
  PgParameters added;
  for (int column = 0; column < 5; ++column) added.integer(counts.integer(at, column));
  added.integer(job_rows);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows now,
      connection.query("UPDATE spillway.progress SET finished = finished + $2,"
                       " failed = failed + $3, prompt_tokens = prompt_tokens + $4,"
                       " generated_tokens = generated_tokens + $5,"
                       " state = CASE WHEN finished + $2 >= $6 THEN 'done' ELSE state END,"
                       " ended_at = CASE WHEN finished + $2 >= $6 THEN now() END"
                       " WHERE job = $1 AND state = 'queued' RETURNING state",
                       added));
  if (now.size() == 0) return false;
  if (now.text(0, 0) == "done") {
    SPILLWAY_RETURN_IF_ERROR(connection
                                 .query("UPDATE spillway.jobs SET ended = true WHERE id = $1",
                                        PgParameters().integer(counts.integer(at, 0)))
                                 .status());
  }
  return true;
}

// As write_results(), without what is in `ended_jobs`; adds to these and is kCancelled when a job
// has ended meanwhile.
Status write_once(PgConnection& connection, const QueueWorker& worker,
                  const std::vector<RowResult>& results, const std::vector<ClaimId>& done,
                  std::set<int64_t>* ended_jobs, WrittenResults* written) {
  *written = {};
  std::vector<ClaimId> claims = done;
  for (const RowResult& result : results) claims.push_back({result.claim, result.generation});
  const auto before = [](const ClaimId& a, const ClaimId& b) { return a.id < b.id; };
  const auto same = [](const ClaimId& a, const ClaimId& b) { return a.id == b.id; };
  std::sort(claims.begin(), claims.end(), before);
  claims.erase(std::unique(claims.begin(), claims.end(), same), claims.end());
  SPILLWAY_ASSIGN_OR_RETURN(const std::set<int64_t> held, hold(connection, worker, claims));
  std::vector<int64_t> jobs, rows, prompts, generated, late_jobs, late_rows;
  std::vector<bool> failed;
  std::vector<std::string> lines;
  std::map<int64_t, int64_t> rows_of_job;
  for (const RowResult& result : results) {
    if (ended_jobs->count(result.job) > 0) {
      ++written->ended;
    } else if (held.count(result.claim) == 0) {
      late_jobs.push_back(result.job);
      late_rows.push_back(result.row);
    } else {
      jobs.push_back(result.job);
      rows.push_back(result.row);
      failed.push_back(result.failed);
      prompts.push_back(result.prompt_tokens);
      generated.push_back(result.generated_tokens);
      lines.push_back(result.line);
      rows_of_job[result.job] = result.job_rows;
    }
  }
  PgParameters values;
  values.integers(jobs).integers(rows).booleans(failed).integers(prompts).integers(generated);
  values.byte_arrays(lines);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows counts,
      connection.query(
          "WITH new AS (INSERT INTO spillway.results"
          " (job, row, failed, prompt_tokens, generated_tokens, line)"
          " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::bigint[],"
          " $5::bigint[], $6::bytea[]) ON CONFLICT DO NOTHING"
          " RETURNING job, failed, prompt_tokens, generated_tokens)"
          " SELECT job, count(*), count(*) FILTER (WHERE failed), sum(prompt_tokens)::bigint,"
          " sum(generated_tokens)::bigint FROM new GROUP BY job ORDER BY job",
          values));
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("DELETE FROM spillway.claims c USING unnest($1::bigint[], $2::bigint[])"
                 " AS u (id, generation) WHERE c.id = u.id AND c.generation = u.generation"
                 " AND c.worker = $3 AND NOT EXISTS (SELECT FROM spillway.inputs i"
                 " WHERE i.job = c.job AND i.position BETWEEN c.first AND c.last"
                 " AND " SPILLWAY_NO_RESULT " OFFSET 0)",
                 PgParameters()
                     .integers(ids_of(done))
                     .integers(generations_of(done))
                     .integer(worker.id))
          .status());
  for (int64_t at = 0; at < counts.size(); ++at) {
    const int64_t job = counts.integer(at, 0);
    SPILLWAY_ASSIGN_OR_RETURN(const bool counted,
                              count_rows(connection, counts, at, rows_of_job[job]));
    if (!counted) {
      ended_jobs->insert(job);
      return {Code::kCancelled, "the job has ended"};
    }
    written->written += counts.integer(at, 1);
  }
  if (late_rows.empty()) return {};
  // A commit whose answer was lost has written them.
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows late,
      connection.query("SELECT count(*) FROM unnest($1::bigint[], $2::bigint[]) AS u (job, row)"
                       " WHERE NOT EXISTS (SELECT FROM spillway.results r"
                       " WHERE r.job = u.job AND r.row = u.row)",
                       PgParameters().integers(late_jobs).integers(late_rows)));
  written->late = late.integer(0, 0);
  return {};
}

// What the worker holds and does not know of.
Status give_back_unknown(PgConnection& connection, const QueueWorker& worker,
                         const std::vector<int64_t>& known) {
  return connection
      .query(
          "UPDATE spillway.claims SET worker = NULL, generation = generation + 1,"
          " alone = false, not_before = now() WHERE worker = $1 AND NOT id = ANY($2)",
          PgParameters().integer(worker.id).integers(known))
      .status();
}

}  // namespace

Result<std::vector<int64_t>> renew_lease(PgConnection& connection, const QueueWorker& worker,
                                         const std::vector<int64_t>& known,
                                         const std::vector<int64_t>& jobs) {
  PgParameters lease;
  lease.integer(worker.id).text(to_utf8(worker.name)).texts(worker.models).text(worker.identity);
  lease.text(worker.format).text(worker.kv_format).text(worker.kv_rule).real(worker.lease_seconds);
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("INSERT INTO spillway.workers (id, name, models, identity, format, kv_format,"
                 " kv_rule, expires)"
                 " VALUES ($1, $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8))"
                 " ON CONFLICT (id) DO UPDATE SET expires = excluded.expires"
                 " RETURNING set_config('synchronous_commit', 'off', true)",
                 lease)
          .status());
  SPILLWAY_RETURN_IF_ERROR(expire_jobs(connection));
  // Of jobs that have ended: those made in the moment of their end are left.
  SPILLWAY_RETURN_IF_ERROR(connection
                               .query("DELETE FROM spillway.claims c USING spillway.jobs j"
                                      " WHERE c.worker = $1 AND j.id = c.job AND j.ended",
                                      PgParameters().integer(worker.id))
                               .status());
  SPILLWAY_RETURN_IF_ERROR(give_back_unknown(connection, worker, known));
  std::vector<int64_t> ended;
  if (jobs.empty()) return ended;
  SPILLWAY_ASSIGN_OR_RETURN(const PgRows rows,
                            connection.query("SELECT u.id FROM unnest($1::bigint[]) AS u (id)"
                                             " LEFT JOIN spillway.jobs j ON j.id = u.id"
                                             " WHERE j.id IS NULL OR j.ended",
                                             PgParameters().integers(jobs)));
  for (int64_t row = 0; row < rows.size(); ++row) ended.push_back(rows.integer(row, 0));
  return ended;
}

Result<std::optional<Claim>> claim_rows(PgConnection& connection, const QueueWorker& worker,
                                        const ClaimRoom& room, bool take_over) {
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const OpenClaim open,
                              open_claim(connection, worker, take_over, /*lock=*/false));
    // What was given back goes before new rows of its job; suspects go behind these, but not behind
    // jobs that came later.
    Urgency urgency;
    if (open.id != 0) urgency = {open.priority, open.deadline, open.job};
    if (open.id != 0 && open.crashes == 0 && !open.vanished) --urgency.job;
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<Claim> claim,
                              take_new(connection, worker, urgency, room));
    if (claim || open.id == 0) return claim;
    bool found = false;
    SPILLWAY_RETURN_IF_ERROR(in_transaction(connection, [&]() -> Status {
      SPILLWAY_RETURN_IF_ERROR(connection.execute("SET LOCAL synchronous_commit = off"));
      SPILLWAY_ASSIGN_OR_RETURN(const OpenClaim locked,
                                open_claim(connection, worker, take_over, /*lock=*/true));
      found = locked.id != 0;
      if (!found) return {};
      SPILLWAY_ASSIGN_OR_RETURN(claim, take(connection, worker, locked, room));
      return {};
    }));
    if (claim || !found) return claim;  // Not found: others were faster.
  }
}

Status begin_alone(PgConnection& connection, const QueueWorker& worker, const ClaimId& claim) {
  return connection
      .query(
          "UPDATE spillway.claims SET alone = true"
          " WHERE id = $1 AND generation = $2 AND worker = $3",
          PgParameters().integer(claim.id).integer(claim.generation).integer(worker.id))
      .status();
}

Result<bool> has_work(PgConnection& connection, const QueueWorker& worker) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows found,
      connection.query("SELECT EXISTS (SELECT FROM spillway.jobs j WHERE (j.next_position <= j.rows"
                       " OR EXISTS (SELECT FROM spillway.claims c WHERE c.job = j.id"
                       " AND NOT c.set_aside)) AND " SPILLWAY_JOB_FITS ")",
                       what_fits(worker)));
  return found.boolean(0, 0);
}

Result<WrittenResults> write_results(PgConnection& connection, const QueueWorker& worker,
                                     const std::vector<RowResult>& results,
                                     const std::vector<ClaimId>& done) {
  std::set<int64_t> ended_jobs;
  for (;;) {
    WrittenResults written;
    const size_t ended = ended_jobs.size();
    const Status status = in_transaction(connection, [&]() -> Status {
      return write_once(connection, worker, results, done, &ended_jobs, &written);
    });
    if (status.ok()) return written;
    if (ended_jobs.size() == ended) return status;
  }
}

Status give_back(PgConnection& connection, const QueueWorker& worker,
                 const std::vector<ClaimId>& claims, double seconds, const std::string& fault) {
  PgParameters back;
  back.integers(ids_of(claims)).integers(generations_of(claims)).integer(worker.id).real(seconds);
  back.optional_text(to_utf8(fault));
  return connection
      .query(
          "UPDATE spillway.claims c SET worker = NULL, generation = c.generation + 1,"
          " alone = false, not_before = now() + make_interval(secs => $4),"
          " faults = c.faults + CASE WHEN $5 IS NULL THEN 0 ELSE 1 END,"
          " set_aside = $5 IS NOT NULL AND c.faults + 1 >= j.attempts_max,"
          " cause = coalesce($5, c.cause)"
          " FROM unnest($1::bigint[], $2::bigint[]) AS u (id, generation), spillway.jobs j"
          " WHERE c.id = u.id AND c.generation = u.generation AND c.worker = $3"
          " AND j.id = c.job",
          back)
      .status();
}

Status leave_queue(PgConnection& connection, const QueueWorker& worker) {
  SPILLWAY_RETURN_IF_ERROR(give_back_unknown(connection, worker, {}));
  return connection
      .query("DELETE FROM spillway.workers WHERE id = $1 OR expires < now() - interval '1 day'",
             PgParameters().integer(worker.id))
      .status();
}

}  // namespace spillway
