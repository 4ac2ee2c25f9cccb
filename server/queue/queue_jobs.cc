#include "server/queue/queue_jobs.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/model_shape.h"
#include "server/batches/batch_line.h"
#include "server/batches/batch_order.h"
#include "server/queue/queue_order.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

constexpr int16_t kTooLong = 1, kRepeatsId = 2;  // inputs.flags
constexpr size_t kCopyBytes = size_t{256} << 10;
constexpr int64_t kFetchedRows = 100;

// Lines are read without a model here: a worker that has one checks them.
struct LineReader {
  ModelShape shape;
  ApiContext context;
  LineReader() { context.shape = &shape; }
};

std::string key_of(const JobSpec& spec, const std::string& input_hash) {
  if (!spec.nonce.empty()) return "nonce " + spec.nonce;
  std::string all = input_hash;
  for (const std::string& part :
       {spec.model, spec.format, spec.kv_format, spec.kv_rule, std::to_string(spec.seed)}) {
    all += "\n" + part;
  }
  return all;
}

// What the row may cost, in tokens that are generated: the steps that its block makes for it, and
// its prompt, many tokens of which go in one. Without max_tokens it is what the API says, or a
// guess for a chat.
double work_of(const BatchLine& line, size_t prompt_bytes) {
  constexpr double kTokensOfCompletion = 16, kTokensOfChat = 256, kPromptBytesOfToken = 64;
  if (line.error) return 0;
  double tokens = line.chat ? kTokensOfChat : kTokensOfCompletion;
  const auto body = nlohmann::json::parse(line.body, nullptr, /*allow_exceptions=*/false);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto found = body.find(name);
    if (found != body.end() && found->is_number()) tokens = found->get<double>();
  }
  const auto samples = body.find("n");
  if (samples != body.end() && samples->is_number()) tokens *= samples->get<double>();
  return tokens + static_cast<double>(prompt_bytes) / kPromptBytesOfToken;
}

// The rows in the order in which they are claimed.
Result<std::vector<QueueRow>> rows_of(BatchInput& input, int64_t rows) {
  const LineReader reader;
  SPILLWAY_ASSIGN_OR_RETURN(const BatchOrder order, BatchOrder::of(input, rows, reader.context));
  std::vector<QueueRow> found;
  found.reserve(static_cast<size_t>(rows));
  CustomIds ids;
  InputLine text;
  std::string prompt;
  for (;;) {
    SPILLWAY_ASSIGN_OR_RETURN(const bool more, input.next(&text));
    if (!more) break;
    BatchLine line = read_batch_line(text, reader.context, &prompt);
    QueueRow& row = found.emplace_back();
    row.offset = text.offset;
    row.number = text.number;
    row.work = work_of(line, prompt.size());
    row.repeats_id = ids.check(&line);
    constexpr size_t kAlikeBytes = 256;  // As BatchOrder counts
    row.group = prompt.size() < kAlikeBytes ? static_cast<uint64_t>(text.number)
                                            : XXH3_64bits(prompt.data(), kAlikeBytes);
  }
  input.rewind();
  if (!order.lines().empty()) {
    // Both are of all lines; found by number, since that is ascending.
    std::vector<QueueRow> grouped;
    grouped.reserve(found.size());
    for (const BatchOrder::Line& line : order.lines()) {
      const auto at =
          std::lower_bound(found.begin(), found.end(), line.number,
                           [](const QueueRow& row, int64_t number) { return row.number < number; });
      grouped.push_back(*at);
    }
    found = std::move(grouped);
  }
  order_rows(&found);
  return found;
}

// The job with this key: its id, or 0.
Result<SubmittedJob> find_job(PgConnection& connection, const std::string& key) {
  SPILLWAY_ASSIGN_OR_RETURN(const PgRows found,
                            connection.query("SELECT id, rows FROM spillway.jobs WHERE key = $1",
                                             PgParameters().text(key)));
  if (found.size() == 0) return SubmittedJob();
  return SubmittedJob{found.integer(0, 0), found.integer(0, 1), true};
}

// 0: an equal one was made meanwhile.
Result<int64_t> insert_job(PgConnection& connection, const JobSpec& spec, const std::string& key,
                           const InputSummary& summary) {
  PgParameters job;
  job.text(to_utf8(spec.name)).text(key).text(summary.hash).text(spec.model);
  job.optional_text(spec.format).optional_text(spec.kv_format).optional_text(spec.kv_rule);
  job.text(std::to_string(spec.seed)).integer(spec.priority);
  job.real(spec.deadline_seconds.value_or(-1)).integer(spec.attempts_max).integer(summary.rows);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows made,
      connection.query(
          "INSERT INTO spillway.jobs (name, key, input_hash, model, format, kv_format, kv_rule,"
          " seed, priority, deadline, attempts_max, rows)"
          " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,"
          " CASE WHEN $10 < 0 THEN NULL ELSE now() + make_interval(secs => $10) END, $11, $12)"
          " ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING RETURNING id",
          job));
  if (made.size() == 0) return 0;
  const int64_t id = made.integer(0, 0);
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("INSERT INTO spillway.progress (job) VALUES ($1)", PgParameters().integer(id))
          .status());
  return id;
}

Status send_rows(PgConnection& connection, int64_t job, BatchInput& input,
                 const std::vector<QueueRow>& rows,
                 const std::function<void(int64_t rows)>& progress) {
  SPILLWAY_RETURN_IF_ERROR(connection.copy_begin(
      "COPY spillway.inputs (job, position, row, flags, line) FROM STDIN (FORMAT binary)"));
  PgCopyBuffer copy;
  int64_t position = 0, next_number = -1;
  InputLine text;
  for (const QueueRow& row : rows) {
    // In the file's order lines follow one another; going to one reads anew.
    if (row.number != next_number) input.go_to(row.offset, row.number);
    const Result<bool> found = input.next(&text);
    if (!found.ok()) {
      connection.copy_abort();
      return found.status();
    }
    SPILLWAY_CHECK(found.value() && text.number == row.number);
    next_number = row.number + 1;
    copy.row(5);
    copy.integer(job);
    copy.integer(++position);
    copy.integer(row.number);
    copy.small(
        static_cast<int16_t>((text.too_long ? kTooLong : 0) | (row.repeats_id ? kRepeatsId : 0)));
    copy.bytes(text.text);
    if (copy.buffer().size() < kCopyBytes) continue;
    SPILLWAY_RETURN_IF_ERROR(connection.copy_put(std::exchange(copy.buffer(), {})));
    if (progress) progress(position);
  }
  copy.end();
  SPILLWAY_RETURN_IF_ERROR(connection.copy_put(copy.buffer()));
  return connection.copy_end();
}

Status no_such_job(int64_t job) {
  return not_found("there is no job " + std::to_string(job) +
                   " in this database; `spillway queue list` shows those that are there");
}

Status is_there(const PgRows& rows, int64_t job) {
  return rows.size() > 0 ? Status() : no_such_job(job);
}

// Rows of a claim that have no result: the few claims that are open, so no scan of a whole job.
#define SPILLWAY_ROWS_OF_CLAIM                                  \
  "(SELECT count(*) FROM spillway.inputs i WHERE i.job = c.job" \
  " AND i.position BETWEEN c.first AND c.last AND NOT EXISTS"   \
  " (SELECT FROM spillway.results r WHERE r.job = i.job AND r.row = i.row))"

constexpr const char* kStatus =
    "WITH open AS (SELECT c.job,"
    " sum(" SPILLWAY_ROWS_OF_CLAIM
    ") FILTER (WHERE NOT c.set_aside AND w.id IS NOT NULL) AS live,"
    " sum(" SPILLWAY_ROWS_OF_CLAIM
    ") FILTER (WHERE NOT c.set_aside AND w.id IS NULL) AS free,"
    " sum(" SPILLWAY_ROWS_OF_CLAIM
    ") FILTER (WHERE c.set_aside) AS aside,"
    " max(c.cause) FILTER (WHERE c.set_aside) AS cause"
    " FROM spillway.claims c JOIN spillway.jobs b ON b.id = c.job AND NOT b.ended"
    " LEFT JOIN spillway.workers w ON w.id = c.worker AND w.expires > now()"
    " WHERE $1 = 0 OR c.job = $1 GROUP BY c.job)"
    " SELECT j.id, j.name, j.model,"
    " CASE WHEN p.state = 'queued' AND j.started IS NOT NULL THEN 'running' ELSE p.state END,"
    " coalesce(j.identity, ''), j.priority, j.rows, p.finished, p.failed,"
    " coalesce(o.live, 0)::bigint, coalesce(o.free, 0)::bigint, coalesce(o.aside, 0)::bigint,"
    " coalesce(o.cause, ''), p.prompt_tokens, p.generated_tokens,"
    " extract(epoch FROM now() - j.created)::double precision,"
    " coalesce(extract(epoch FROM coalesce(p.ended_at, now()) - j.started), 0)::double precision,"
    " extract(epoch FROM j.deadline - now())::double precision,"
    " (SELECT count(*) FROM spillway.workers w WHERE w.expires > now() AND j.model = ANY(w.models)"
    " AND (j.identity IS NULL OR w.identity = j.identity)"
    " AND (j.format IS NULL OR j.format = w.format)"
    " AND (j.kv_format IS NULL OR j.kv_format = w.kv_format)"
    " AND (j.kv_rule IS NULL OR j.kv_rule = w.kv_rule)),"
    " (SELECT count(*) FROM spillway.workers w WHERE w.expires > now())"
    " FROM spillway.jobs j JOIN spillway.progress p ON p.job = j.id LEFT JOIN open o ON o.job = "
    "j.id"
    " WHERE $1 = 0 OR j.id = $1 ORDER BY j.id";

Result<std::vector<JobStatus>> statuses(PgConnection& connection, int64_t job) {
  SPILLWAY_RETURN_IF_ERROR(expire_jobs(connection));
  SPILLWAY_ASSIGN_OR_RETURN(const PgRows rows,
                            connection.query(kStatus, PgParameters().integer(job)));
  std::vector<JobStatus> all;
  for (int64_t row = 0; row < rows.size(); ++row) {
    JobStatus& now = all.emplace_back();
    now.id = rows.integer(row, 0);
    now.name = rows.text(row, 1);
    now.model = rows.text(row, 2);
    now.state = rows.text(row, 3);
    now.identity = rows.text(row, 4);
    now.priority = rows.integer(row, 5);
    now.rows = rows.integer(row, 6);
    now.finished = rows.integer(row, 7);
    now.failed = rows.integer(row, 8);
    now.claimed = rows.integer(row, 9);
    now.abandoned = rows.integer(row, 10);
    now.set_aside = rows.integer(row, 11);
    now.cause = rows.text(row, 12);
    now.prompt_tokens = rows.integer(row, 13);
    now.generated_tokens = rows.integer(row, 14);
    now.age_seconds = rows.real(row, 15);
    now.run_seconds = rows.real(row, 16);
    if (!rows.null(row, 17)) now.deadline_in_seconds = rows.real(row, 17);
    now.workers = rows.integer(row, 18);
    now.workers_else = rows.integer(row, 19) - now.workers;
  }
  return all;
}

Status delete_claims(PgConnection& connection, int64_t job) {
  return connection.query("DELETE FROM spillway.claims WHERE job = $1", PgParameters().integer(job))
      .status();
}

// Nothing of the job is claimed any more, and the same file may be handed in again.
Status end_early(PgConnection& connection, int64_t job) {
  return connection
      .query("UPDATE spillway.jobs SET ended = true, key = NULL WHERE id = $1",
             PgParameters().integer(job))
      .status();
}

// The line of a row that did not run, with the codes of /v1/batches.
std::string line_not_run(const std::string& run_id, const BatchLine& line, bool expired) {
  ApiError error;
  error.status = 409;
  error.code = expired ? "batch_expired" : "batch_cancelled";
  error.message = expired ? "This request did not run before the job's deadline."
                          : "This request did not run: the job was cancelled.";
  return error_line(run_id, line, error);
}

// A query's rows, read in parts of it.
class Cursor {
 public:
  Cursor(PgConnection& connection, std::string name)
      : connection_(connection),
        fetch_("FETCH " + std::to_string(kFetchedRows) + " FROM " + std::move(name)) {}

  Result<bool> next() {
    if (++at_ < rows_.size()) return true;
    SPILLWAY_ASSIGN_OR_RETURN(rows_, connection_.query_once(fetch_));
    at_ = 0;
    return rows_.size() > 0;
  }
  const PgRows& rows() const { return rows_; }
  int64_t at() const { return at_; }

 private:
  PgConnection& connection_;
  const std::string fetch_;
  PgRows rows_;
  int64_t at_ = 0;
};

}  // namespace

Result<SubmittedJob> submit_job(PgConnection& connection, const JobSpec& spec, BatchInput& input,
                                const std::function<void(int64_t rows)>& progress) {
  SPILLWAY_ASSIGN_OR_RETURN(const InputSummary summary, summarize(input));
  if (summary.rows == 0) return invalid_argument(spec.name + " has no lines");
  const std::string key = key_of(spec, summary.hash);
  SPILLWAY_RETURN_IF_ERROR(expire_jobs(connection));  // Such a one is no equal job any more.
  SPILLWAY_ASSIGN_OR_RETURN(const SubmittedJob earlier, find_job(connection, key));
  if (earlier.id != 0) return earlier;
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<QueueRow> rows, rows_of(input, summary.rows));
  SubmittedJob made;
  made.rows = summary.rows;
  SPILLWAY_RETURN_IF_ERROR(in_transaction(connection, [&]() -> Status {
    Result<int64_t> id = insert_job(connection, spec, key, summary);
    if (id.status().message().find("(55P03)") != std::string_view::npos) {
      return {Code::kIoError, "another session is handing in the same file at this moment"};
    }
    SPILLWAY_ASSIGN_OR_RETURN(made.id, std::move(id));
    return made.id == 0 ? Status() : send_rows(connection, made.id, input, rows, progress);
  }));
  if (made.id != 0) return made;
  return find_job(connection, key);
}

Result<JobStatus> job_status(PgConnection& connection, int64_t job) {
  if (job <= 0) return no_such_job(job);
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<JobStatus> found, statuses(connection, job));
  if (found.empty()) return no_such_job(job);
  return std::move(found.front());
}

Result<std::vector<JobStatus>> list_jobs(PgConnection& connection) {
  return statuses(connection, 0);
}

Result<QueueSample> sample_queue(PgConnection& connection, const std::vector<std::string>& models,
                                 int64_t lines_max) {
  QueueSample sample;
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows job,
      connection.query("SELECT j.id, j.rows - p.finished, j.seed FROM spillway.jobs j"
                       " JOIN spillway.progress p ON p.job = j.id"
                       " WHERE NOT j.ended AND j.model = ANY($1)"
                       " ORDER BY j.priority, coalesce(j.deadline, 'infinity'), j.id LIMIT 1",
                       PgParameters().texts(models)));
  if (job.size() == 0) return sample;
  sample.rows = job.integer(0, 1);
  sample.seed = std::strtoull(job.text(0, 2).c_str(), nullptr, 10);
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows lines,
      connection.query("SELECT line FROM spillway.inputs WHERE job = $1 ORDER BY position LIMIT $2",
                       PgParameters().integer(job.integer(0, 0)).integer(lines_max)));
  for (int64_t row = 0; row < lines.size(); ++row) sample.lines.push_back(lines.text(row, 0));
  return sample;
}

Result<std::vector<WorkerStatus>> list_workers(PgConnection& connection) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows rows,
      connection.query("SELECT name, models[1], identity,"
                       " extract(epoch FROM now() - started)::double precision,"
                       " extract(epoch FROM expires - now())::double precision,"
                       " (SELECT count(*) FROM spillway.claims c WHERE c.worker = w.id)"
                       " FROM spillway.workers w ORDER BY started, name"));
  std::vector<WorkerStatus> workers;
  for (int64_t row = 0; row < rows.size(); ++row) {
    workers.push_back({rows.text(row, 0), rows.text(row, 1), rows.text(row, 2), rows.real(row, 3),
                       rows.real(row, 4), rows.integer(row, 5)});
  }
  return workers;
}

Status cancel_job(PgConnection& connection, int64_t job) {
  return in_transaction(connection, [&]() -> Status {
    // Claims before progress, as where results are written: else the two could wait for each other.
    SPILLWAY_RETURN_IF_ERROR(delete_claims(connection, job));
    SPILLWAY_ASSIGN_OR_RETURN(
        const PgRows found,
        connection.query("UPDATE spillway.progress SET"
                         " state = CASE state WHEN 'queued' THEN 'cancelled' ELSE state END,"
                         " ended_at = coalesce(ended_at, now()) WHERE job = $1 RETURNING state",
                         PgParameters().integer(job)));
    SPILLWAY_RETURN_IF_ERROR(is_there(found, job));
    if (found.text(0, 0) == "done") return {};
    return end_early(connection, job);
  });
}

Result<int64_t> retry_job(PgConnection& connection, int64_t job) {
  SPILLWAY_ASSIGN_OR_RETURN(const JobStatus before, job_status(connection, job));
  SPILLWAY_RETURN_IF_ERROR(
      connection
          .query("UPDATE spillway.claims SET set_aside = false, faults = 0, not_before = now(),"
                 " cause = NULL WHERE job = $1 AND set_aside",
                 PgParameters().integer(job))
          .status());
  return before.set_aside;
}

Status delete_job(PgConnection& connection, int64_t job) {
  SPILLWAY_ASSIGN_OR_RETURN(const JobStatus now, job_status(connection, job));
  if (!now.final()) {
    return {Code::kCapacity, "job " + std::to_string(job) + " is " + now.state +
                                 ": cancel it before, or wait for its end"};
  }
  return in_transaction(connection, [&]() -> Status {
    for (const char* const sql : {"DELETE FROM spillway.claims WHERE job = $1",
                                  "DELETE FROM spillway.results WHERE job = $1",
                                  "DELETE FROM spillway.inputs WHERE job = $1",
                                  "DELETE FROM spillway.jobs WHERE id = $1"}) {
      SPILLWAY_RETURN_IF_ERROR(connection.query(sql, PgParameters().integer(job)).status());
    }
    return {};
  });
}

Status expire_jobs(PgConnection& connection) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows late,
      connection.query("SELECT j.id FROM spillway.jobs j JOIN spillway.progress p ON p.job = j.id"
                       " WHERE NOT j.ended AND j.deadline < now() AND p.state = 'queued'"));
  for (int64_t row = 0; row < late.size(); ++row) {
    const int64_t job = late.integer(row, 0);
    SPILLWAY_RETURN_IF_ERROR(in_transaction(connection, [&]() -> Status {
      SPILLWAY_RETURN_IF_ERROR(delete_claims(connection, job));
      SPILLWAY_ASSIGN_OR_RETURN(
          const PgRows ended,
          connection.query("UPDATE spillway.progress SET state = 'expired', ended_at = now()"
                           " WHERE job = $1 AND state = 'queued' RETURNING job",
                           PgParameters().integer(job)));
      return ended.size() == 0 ? Status() : end_early(connection, job);
    }));
  }
  return {};
}

Status fetch_job(PgConnection& connection, int64_t job,
                 const std::function<Status(std::string_view line)>& line) {
  SPILLWAY_ASSIGN_OR_RETURN(const JobStatus now, job_status(connection, job));
  if (!now.final()) {
    return {Code::kCapacity, "job " + std::to_string(job) +
                                 " is not complete: " + std::to_string(now.finished) + " of " +
                                 std::to_string(now.rows) + " rows are done. Nothing was written"};
  }
  return in_transaction(connection, [&]() -> Status {
    const std::string of_job = " WHERE job = " + std::to_string(job);
    SPILLWAY_RETURN_IF_ERROR(connection.execute(
        "DECLARE results NO SCROLL CURSOR FOR SELECT row, line FROM spillway.results" + of_job +
        " ORDER BY row"));
    // Of a job that is done there are none; asking would read all of it.
    SPILLWAY_RETURN_IF_ERROR(connection.execute(
        "DECLARE others NO SCROLL CURSOR FOR SELECT i.row, i.line, i.flags,"
        " (SELECT coalesce(run_id, '') FROM spillway.jobs WHERE id = i.job)"
        " FROM spillway.inputs i" +
        of_job + (now.state == "done" ? " AND false" : "") +
        " AND NOT EXISTS (SELECT FROM spillway.results r WHERE r.job = i.job AND r.row = i.row)"
        " ORDER BY i.row"));
    Cursor results(connection, "results"), others(connection, "others");
    const LineReader reader;
    SPILLWAY_ASSIGN_OR_RETURN(bool result, results.next());
    SPILLWAY_ASSIGN_OR_RETURN(bool other, others.next());
    int64_t lines = 0;
    for (; result || other; ++lines) {
      if (result && (!other || results.rows().integer(results.at(), 0) <
                                   others.rows().integer(others.at(), 0))) {
        SPILLWAY_RETURN_IF_ERROR(line(results.rows().bytes(results.at(), 1)));
        SPILLWAY_ASSIGN_OR_RETURN(result, results.next());
        continue;
      }
      InputLine text;
      text.number = others.rows().integer(others.at(), 0);
      text.text = others.rows().bytes(others.at(), 1);
      text.too_long = (others.rows().integer(others.at(), 2) & kTooLong) != 0;
      const std::string run_id = others.rows().text(others.at(), 3);
      SPILLWAY_RETURN_IF_ERROR(
          line(line_not_run(run_id.empty() ? "0000000000000000" : run_id,
                            read_batch_line(text, reader.context), now.state == "expired")));
      SPILLWAY_ASSIGN_OR_RETURN(other, others.next());
    }
    if (lines == now.rows) return {};
    return corruption("job " + std::to_string(job) + " has " + std::to_string(now.rows) +
                      " rows and the database gave " + std::to_string(lines));
  });
}

}  // namespace spillway
