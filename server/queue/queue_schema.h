// The tables of the queue in PostgreSQL, all in the schema "spillway", with a version.
// ARCHITECTURE.md
// ("The queue") says what they are for.
#pragma once

#include <span>

#include "kernels/base/status.h"
#include "server/queue/postgres.h"

namespace spillway {

// Each brings the tables to the version that is its number, from 1.
std::span<const char* const> queue_migrations();

// Brings the tables to the newest version, or makes them; several programs may do so at once.
// kInfeasible: a newer Spillway made them. Other errors as of PgConnection.
Status migrate_queue(PgConnection& connection,
                     std::span<const char* const> migrations = queue_migrations());

// kNotFound: there are no tables. kInfeasible: they are of another version. The message says what
// to do.
Status check_queue(PgConnection& connection,
                   std::span<const char* const> migrations = queue_migrations());

}  // namespace spillway
