#include "server/queue/queue_schema.h"

#include <cstdint>
#include <string>

namespace spillway {
namespace {

// A migration that was released is never changed: another one is added behind it.
//
// What is written for every row are one line of results, and nothing else: claims are of runs of
// rows, and rows that were never claimed are those from next_position on. So a claim takes the same
// time however many rows there are, and leaves nothing for VACUUM but one short row.
constexpr const char* kMigrations[] = {
    R"sql(
CREATE TABLE spillway.jobs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL,                 -- of the file, for people
  key text,                           -- of the input and all that changes results; null: it ended early
  input_hash text NOT NULL,
  model text NOT NULL,
  format text, kv_format text, kv_rule text,  -- null: those of the first worker
  seed text NOT NULL,                 -- an unsigned number of 64 bits
  priority integer NOT NULL,
  deadline timestamptz,
  attempts_max integer NOT NULL,
  rows bigint NOT NULL,
  next_position bigint NOT NULL DEFAULT 1,    -- rows from here on were never claimed
  ended boolean NOT NULL DEFAULT false,
  identity text,                      -- what its first worker answers with; later ones must equal it
  run_id text,
  created timestamptz NOT NULL DEFAULT now(),
  started timestamptz
) WITH (fillfactor = 50);
-- Partial, so that a change of key is none for those who refer to the row, and waits for none of them.
CREATE UNIQUE INDEX jobs_by_key ON spillway.jobs (key) WHERE key IS NOT NULL;
-- Without next_position, so that a claim changes no index.
CREATE INDEX jobs_to_claim ON spillway.jobs (priority, deadline, id) WHERE NOT ended;

-- Apart from jobs, so that who claims does not wait for who writes results.
CREATE TABLE spillway.progress (
  job bigint PRIMARY KEY REFERENCES spillway.jobs ON DELETE CASCADE,
  state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'done', 'cancelled', 'expired')),
  finished bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  prompt_tokens bigint NOT NULL DEFAULT 0,
  generated_tokens bigint NOT NULL DEFAULT 0,
  ended_at timestamptz
) WITH (fillfactor = 50);

-- These refer to jobs without a constraint: its check would lock the job's row for each row of theirs, and
-- those who claim would wait for those who write.

-- Rows are claimed by their position, in which long and short ones are mixed.
CREATE TABLE spillway.inputs (
  job bigint NOT NULL,
  position bigint NOT NULL,
  row bigint NOT NULL,                -- number of its line in the file
  flags smallint NOT NULL,            -- 1: too long; 2: its custom_id is an earlier line's
  line bytea NOT NULL,
  PRIMARY KEY (job, position)
);

CREATE TABLE spillway.results (
  job bigint NOT NULL,
  row bigint NOT NULL,
  failed boolean NOT NULL,
  prompt_tokens bigint NOT NULL,
  generated_tokens bigint NOT NULL,
  line bytea NOT NULL,                -- of the output, without its newline
  PRIMARY KEY (job, row)
);

CREATE TABLE spillway.workers (
  id bigint PRIMARY KEY,              -- drawn by the worker
  name text NOT NULL,
  models text[] NOT NULL,
  identity text NOT NULL,
  format text NOT NULL, kv_format text NOT NULL, kv_rule text NOT NULL,
  started timestamptz NOT NULL DEFAULT now(),
  expires timestamptz NOT NULL        -- renewed while it lives; behind it others take its claims
) WITH (fillfactor = 50);

-- Runs of rows that are claimed, or were given back.
CREATE TABLE spillway.claims (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job bigint NOT NULL,
  first bigint NOT NULL,              -- positions, both included
  last bigint NOT NULL,
  worker bigint,                      -- null: given back
  generation bigint NOT NULL,         -- drawn, then raised whenever the owner changes
  alone boolean NOT NULL DEFAULT false,       -- it runs with nothing beside it
  crashes integer NOT NULL DEFAULT 0, -- owners that vanished with it
  alone_crashes integer NOT NULL DEFAULT 0,   -- ... while it was one row and ran alone
  faults integer NOT NULL DEFAULT 0,  -- owners whose machine failed its rows
  set_aside boolean NOT NULL DEFAULT false,   -- too many faults: waits for `queue retry`
  not_before timestamptz NOT NULL DEFAULT now(),
  cause text
);
CREATE INDEX claims_of_jobs ON spillway.claims (job);
CREATE INDEX claims_of_workers ON spillway.claims (worker);
)sql",
};

constexpr const char* kLock = "SELECT pg_advisory_xact_lock(hashtext('spillway.schema'))";

// 0: there are no tables.
Result<int64_t> version_of(PgConnection& connection) {
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows found,
      connection.query("SELECT to_regclass('spillway.schema_version') IS NOT NULL"));
  if (!found.boolean(0, 0)) return 0;
  SPILLWAY_ASSIGN_OR_RETURN(
      const PgRows version,
      connection.query("SELECT coalesce(max(version), 0) FROM spillway.schema_version"));
  return version.integer(0, 0);
}

Status too_new(const PgConnection& connection, int64_t version, size_t known) {
  return {Code::kInfeasible, connection.place() + ": the queue's tables are of version " +
                                 std::to_string(version) +
                                 ", and this spillway (" SPILLWAY_VERSION ") knows up to " +
                                 std::to_string(known) + "; use the newer spillway that made them"};
}

}  // namespace

std::span<const char* const> queue_migrations() {
  return kMigrations;
}

Status migrate_queue(PgConnection& connection, std::span<const char* const> migrations) {
  const auto newest = static_cast<int64_t>(migrations.size());
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t present, version_of(connection));
  if (present == newest) return {};
  if (present > newest) return too_new(connection, present, migrations.size());
  return in_transaction(connection, [&]() -> Status {
    SPILLWAY_RETURN_IF_ERROR(connection.execute(kLock));
    SPILLWAY_ASSIGN_OR_RETURN(const int64_t version, version_of(connection));  // Under the lock
    if (version > newest) return too_new(connection, version, migrations.size());
    if (version == 0) {
      SPILLWAY_RETURN_IF_ERROR(
          connection.execute("CREATE SCHEMA IF NOT EXISTS spillway;"
                             "CREATE TABLE spillway.schema_version (version bigint PRIMARY KEY,"
                             " applied timestamptz NOT NULL DEFAULT now())"));
    }
    for (int64_t next = version + 1; next <= newest; ++next) {
      SPILLWAY_RETURN_IF_ERROR(connection.execute(migrations[static_cast<size_t>(next - 1)]));
      SPILLWAY_RETURN_IF_ERROR(
          connection
              .query("INSERT INTO spillway.schema_version (version) VALUES ($1)",
                     PgParameters().integer(next))
              .status());
    }
    return {};
  });
}

Status check_queue(PgConnection& connection, std::span<const char* const> migrations) {
  const auto newest = static_cast<int64_t>(migrations.size());
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t version, version_of(connection));
  if (version == newest) return {};
  if (version > newest) return too_new(connection, version, migrations.size());
  if (version == 0) {
    return not_found(connection.place() +
                     ": there is no queue in this database; `spillway queue submit` makes its "
                     "tables (schema spillway)");
  }
  return {Code::kInfeasible, connection.place() + ": the queue's tables are of version " +
                                 std::to_string(version) + ", and this spillway needs " +
                                 std::to_string(newest) +
                                 "; `spillway queue submit` of this version brings them there"};
}

}  // namespace spillway
