#include "server/queue/queue_claims.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace spillway {
namespace {

// A claim whose owner vanished is cut in so many parts, so that a row that ends the program is soon
// alone and the others get their results.
constexpr int64_t kParts = 8;
constexpr int64_t kApartFrom = 2;  // Crashes

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
  int64_t job = 0, job_rows = 0;
  std::string run_id, seed;
  int64_t first = 0, last = 0, generation = 0, crashes = 0, attempts_max = 0;
  bool vanished = false;  // It has an owner, whose lease is over.
};

#define SPILLWAY_OPEN_CLAIM                                                         \
  "SELECT c.id, j.priority, j.id, j.rows, coalesce(j.run_id, ''), j.seed,"          \
  " c.first, c.last, c.generation, c.crashes, j.attempts_max, c.worker IS NOT NULL" \
  " FROM spillway.claims c JOIN spillway.jobs j ON j.id = c.job"                    \
  " LEFT JOIN spillway.workers w ON w.id = c.worker"                                \
  " WHERE NOT c.set_aside AND c.not_before <= now()"                                \
  " AND (c.worker IS NULL OR ($6 AND (w.id IS NULL OR w.expires < now())))"         \
  " AND " SPILLWAY_JOB_FITS " ORDER BY j.priority, c.crashes > 0, " SPILLWAY_URGENCY " LIMIT 1"

constexpr const char* kOpenClaim = SPILLWAY_OPEN_CLAIM;
constexpr const char* kLockedOpenClaim = SPILLWAY_OPEN_CLAIM " FOR UPDATE OF c SKIP LOCKED";

Result<OpenClaim> open_claim(PgConnection& connection, const QueueWorker& worker, bool take_over,
                             bool lock) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows rows,
      connection.query(lock ? kLockedOpenClaim : kOpenClaim, what_fits(worker).boolean(take_over)));
  OpenClaim open;
  if (rows.size() == 0) return open;
  open.id = rows.integer(0, 0);
  open.priority = rows.integer(0, 1);
  open.job = rows.integer(0, 2);
  open.job_rows = rows.integer(0, 3);
  open.run_id = rows.text(0, 4);
  open.seed = rows.text(0, 5);
  open.first = rows.integer(0, 6);
  open.last = rows.integer(0, 7);
  open.generation = rows.integer(0, 8);
  open.vanished = rows.boolean(0, 11);
  open.crashes = rows.integer(0, 9) + (open.vanished ? 1 : 0);
  open.attempts_max = rows.integer(0, 10);
  return open;
}

// The rows of these positions, without those that have a result if some may have.
Result<std::vector<ClaimedRow>> rows_between(PgConnection& connection, int64_t job, int64_t first,
                                             int64_t last, bool some_have_results) {
  constexpr const char* kAll =
      "SELECT i.row, i.position, i.flags, i.line FROM spillway.inputs i"
      " WHERE i.job = $1 AND i.position BETWEEN $2 AND $3 ORDER BY i.position";
  constexpr const char* kWithoutResult =
      "SELECT i.row, i.position, i.flags, i.line FROM spillway.inputs i"
      " WHERE i.job = $1 AND i.position BETWEEN $2 AND $3 AND NOT EXISTS"
      " (SELECT FROM spillway.results r WHERE r.job = i.job AND r.row = i.row)"
      " ORDER BY i.position";
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows found,
      connection.query(some_have_results ? kWithoutResult : kAll,
                       PgParameters().integer(job).integer(first).integer(last)));
  std::vector<ClaimedRow> rows;
  rows.reserve(static_cast<size_t>(found.size()));
  for (int64_t row = 0; row < found.size(); ++row) {
    const int64_t flags = found.integer(row, 2);
    rows.push_back({found.integer(row, 0), found.integer(row, 1), (flags & 1) != 0,
                    (flags & 2) != 0, found.text(row, 3)});
  }
  return rows;
}

// Takes an open claim, or its first rows; the rest becomes claims of its own. None: all its rows
// have results.
Result<std::optional<Claim>> take(PgConnection& connection, const QueueWorker& worker,
                                  const OpenClaim& open, int64_t room) {
  Claim claim;
  claim.job = open.job;
  claim.job_rows = open.job_rows;
  claim.run_id = open.run_id;
  claim.seed = seed_of(open.seed);
  SPILLWAY_ASSIGN_OR_RETURN(claim.rows,
                            rows_between(connection, open.job, open.first, open.last, true));
  if (claim.rows.empty()) {
    SPILLWAY_RETURN_IF_ERROR(
        connection
            .query("DELETE FROM spillway.claims WHERE id = $1", PgParameters().integer(open.id))
            .status());
    return std::optional<Claim>();
  }
  const auto rows = static_cast<int64_t>(claim.rows.size());
  const int64_t parts = open.vanished ? kParts : 1;
  const int64_t mine = std::min(room, (rows + parts - 1) / parts);
  for (int64_t first = mine; first < rows; first += mine) {
    const int64_t last = std::min(rows, first + mine) - 1;
    PgParameters rest;
    rest.integer(open.job).integer(claim.rows[static_cast<size_t>(first)].position);
    rest.integer(claim.rows[static_cast<size_t>(last)].position).integer(open.crashes);
    SPILLWAY_RETURN_IF_ERROR(connection
                                 .query("INSERT INTO spillway.claims (job, first, last, crashes)"
                                        " VALUES ($1, $2, $3, $4::bigint)",
                                        rest)
                                 .status());
  }
  claim.rows.resize(static_cast<size_t>(mine));
  claim.id = open.id;
  claim.generation = open.generation + 1;
  claim.apart = open.crashes >= kApartFrom;
  claim.convicted = rows == 1 && open.crashes >= open.attempts_max;
  PgParameters taken;
  taken.integer(open.id).integer(claim.rows.front().position);
  taken.integer(claim.rows.back().position).integer(worker.id);
  taken.integer(claim.generation).integer(open.crashes);
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("UPDATE spillway.claims SET first = $2, last = $3, worker = $4, generation = $5,"
                 " crashes = $6::bigint WHERE id = $1",
                 taken)
          .status());
  return std::optional<Claim>(std::move(claim));
}

// One statement, so that the job is locked only while the server is at it, and others that claim do
// not wait for this client. The last rows are shared out, so that no worker has many of them while
// others have none. $6: the least urgent priority, $7: room, $8: the worker.
constexpr const char* kClaimNew =
    "WITH job AS (SELECT j.id, j.next_position AS first,"
    " least($7, greatest(1, ceil((j.rows - j.next_position + 1)::float8 / (2 * greatest(1,"
    " (SELECT count(*) FROM spillway.workers w WHERE w.expires > now() AND w.identity = $2))))))"
    "::bigint AS size FROM spillway.jobs j WHERE j.next_position <= j.rows AND j.priority <= $6"
    " AND " SPILLWAY_JOB_FITS " ORDER BY " SPILLWAY_URGENCY
    " LIMIT 1 FOR UPDATE),"
    " moved AS (UPDATE spillway.jobs j SET next_position = job.first + job.size,"
    " identity = coalesce(j.identity, $2), started = coalesce(j.started, now())"
    " FROM job WHERE j.id = job.id"
    " RETURNING j.id, j.rows, j.input_hash, j.run_id, j.seed, job.first, job.size),"
    " made AS (INSERT INTO spillway.claims (job, first, last, worker)"
    " SELECT m.id, m.first, m.first + m.size - 1, $8 FROM moved m RETURNING id, first, last)"
    " SELECT made.id, m.id, m.rows, m.input_hash, coalesce(m.run_id, ''), m.seed,"
    " made.first, made.last FROM moved m, made";

// Claims rows that nobody had before, of a job that is at least so urgent.
Result<std::optional<Claim>> take_new(PgConnection& connection, const QueueWorker& worker,
                                      int64_t priority, int64_t room) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows made,
      connection.query(kClaimNew,
                       what_fits(worker).integer(priority).integer(room).integer(worker.id)));
  if (made.size() == 0) return std::optional<Claim>();
  Claim claim;
  claim.id = made.integer(0, 0);
  claim.generation = 1;
  claim.job = made.integer(0, 1);
  claim.job_rows = made.integer(0, 2);
  claim.seed = seed_of(made.text(0, 5));
  claim.run_id = made.text(0, 4);
  if (claim.run_id.empty()) {
    PgParameters named;
    named.integer(claim.job).text(worker.run_id(made.text(0, 3), claim.seed));
    SPILLWAY_ASSIGN_OR_RETURN(
        const PgRows name, connection.query("UPDATE spillway.jobs SET run_id = coalesce(run_id, $2)"
                                            " WHERE id = $1 RETURNING run_id",
                                            named));
    if (name.size() > 0) claim.run_id = name.text(0, 0);
  }
  SPILLWAY_ASSIGN_OR_RETURN(claim.rows, rows_between(connection, claim.job, made.integer(0, 6),
                                                     made.integer(0, 7), false));
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
  std::vector<int64_t> jobs, rows, prompts, generated;
  std::vector<bool> failed;
  std::vector<std::string> lines;
  std::map<int64_t, int64_t> rows_of_job;
  for (const RowResult& result : results) {
    if (ended_jobs->count(result.job) > 0) {
      ++written->ended;
    } else if (held.count(result.claim) == 0) {
      ++written->late;
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
          .query(
              "DELETE FROM spillway.claims WHERE id = ANY($1) AND worker = $2"
              " AND generation = (SELECT u.generation FROM"
              " unnest($1::bigint[], $3::bigint[]) AS u (id, generation) WHERE u.id = claims.id)",
              PgParameters()
                  .integers(ids_of(done))
                  .integer(worker.id)
                  .integers(generations_of(done)))
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
  return {};
}

}  // namespace

Result<std::vector<int64_t>> renew_lease(PgConnection& connection, const QueueWorker& worker,
                                         const std::vector<int64_t>& jobs) {
  PgParameters lease;
  lease.integer(worker.id).text(worker.name).text(worker.models.front()).text(worker.identity);
  lease.real(worker.lease_seconds);
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("INSERT INTO spillway.workers (id, name, model, identity, lease_seconds, expires)"
                 " VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $5))"
                 " ON CONFLICT (id) DO UPDATE SET expires = excluded.expires",
                 lease)
          .status());
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
                                        int64_t room, bool take_over) {
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const OpenClaim open,
                              open_claim(connection, worker, take_over, /*lock=*/false));
    // Suspects wait for all others of their priority.
    const int64_t priority = open.id == 0       ? INT64_MAX
                             : open.crashes > 0 ? open.priority
                                                : open.priority - 1;
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<Claim> claim,
                              take_new(connection, worker, priority, room));
    if (claim || open.id == 0) return claim;
    bool found = false;
    SPILLWAY_RETURN_IF_ERROR(in_transaction(connection, [&]() -> Status {
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
      SPILLWAY_RETURN_IF_ERROR(connection.execute("SET LOCAL synchronous_commit = on"));
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
  back.optional_text(fault);
  return connection
      .query(
          "UPDATE spillway.claims c SET worker = NULL, generation = c.generation + 1,"
          " not_before = now() + make_interval(secs => $4),"
          " faults = c.faults + CASE WHEN $5 IS NULL THEN 0 ELSE 1 END,"
          " set_aside = $5 IS NOT NULL AND c.faults + 1 >= j.attempts_max,"
          " cause = coalesce($5, c.cause)"
          " FROM unnest($1::bigint[], $2::bigint[]) AS u (id, generation), spillway.jobs j"
          " WHERE c.id = u.id AND c.generation = u.generation AND c.worker = $3"
          " AND j.id = c.job",
          back)
      .status();
}

Status give_back_unknown(PgConnection& connection, const QueueWorker& worker,
                         const std::vector<int64_t>& known) {
  return connection
      .query(
          "UPDATE spillway.claims SET worker = NULL, generation = generation + 1,"
          " not_before = now() WHERE worker = $1 AND NOT id = ANY($2)",
          PgParameters().integer(worker.id).integers(known))
      .status();
}

Status leave_queue(PgConnection& connection, const QueueWorker& worker) {
  SPILLWAY_RETURN_IF_ERROR(give_back_unknown(connection, worker, {}));
  return vanish_from_queue(connection, worker);
}

Status vanish_from_queue(PgConnection& connection, const QueueWorker& worker) {
  return connection
      .query("DELETE FROM spillway.workers WHERE id = $1 OR expires < now() - interval '1 day'",
             PgParameters().integer(worker.id))
      .status();
}

}  // namespace spillway
