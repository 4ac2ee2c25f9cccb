// A connection to PostgreSQL (libpq): queries with a time limit, so that a server or a network that
// hangs is an error and not a hang of ours.
//
// Errors: kIoError where another try may succeed (no connection, a server that starts or stops, a
// full disk there, a deadlock, a time limit); kNotFound for a missing table or schema; kCancelled
// when PgOptions::stop said so; kInvalidArgument for everything else (a wrong password, a missing
// database or right). Messages never contain the password.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

struct pg_conn;
struct pg_result;

namespace spillway {

struct PgOptions {
  double connect_seconds = 10;
  // For one query, from the first byte sent to the last one received. A connection that exceeds it
  // is closed, and whether the query took effect is not known.
  double query_seconds = 30;
  // Statements run once when connected, such as "SET jit = off"; may be empty.
  std::string settings = {};
  // Asked ten times a second while waiting; true ends the wait. May be empty.
  std::function<bool()> stop = {};
};

// The parameters $1, $2 ... of a query, in order.
class PgParameters {
 public:
  PgParameters& text(std::string_view value);
  PgParameters& optional_text(std::string_view value);  // Empty: null
  PgParameters& integer(int64_t value);                 // bigint
  PgParameters& real(double value);                     // double precision
  PgParameters& boolean(bool value);
  PgParameters& texts(const std::vector<std::string>& values);        // text[]
  PgParameters& integers(const std::vector<int64_t>& values);         // bigint[]
  PgParameters& booleans(const std::vector<bool>& values);            // boolean[]
  PgParameters& byte_arrays(const std::vector<std::string>& values);  // bytea[]

 private:
  friend class PgConnection;
  struct Parameter {
    uint32_t type;
    bool null;
    std::string value;  // In PostgreSQL's binary form
  };
  PgParameters& add(uint32_t type, std::string value);
  std::vector<Parameter> parameters_;
};

// The rows that a query gave. Rows and columns count from 0.
class PgRows {
 public:
  int64_t size() const;
  bool null(int64_t row, int column) const;
  std::string_view bytes(int64_t row, int column) const;  // text or bytea; valid as long as this
  std::string text(int64_t row, int column) const { return std::string(bytes(row, column)); }
  int64_t integer(int64_t row, int column) const;  // smallint, integer or bigint; null: 0
  double real(int64_t row, int column) const;      // double precision; null: 0
  bool boolean(int64_t row, int column) const;

 private:
  friend class PgConnection;
  struct Clear {
    void operator()(pg_result* result) const;
  };
  std::unique_ptr<pg_result, Clear> result_;
};

class PgConnection {
 public:
  // `url`: a URL or connection string as of libpq, which reads what is missing from its own places
  // (PGPASSWORD, ~/.pgpass, a service file). Of several hosts each is tried, for `connect_seconds`.
  // Blocks.
  static Result<PgConnection> connect(const std::string& url, const PgOptions& options);

  // "host:port/database as user", without a password.
  const std::string& place() const { return place_; }

  // Runs one query. Blocks. After kIoError or kCancelled look at broken(). It is prepared at its
  // first use and kept, so `sql` has its values as parameters.
  Result<PgRows> query(const char* sql, const PgParameters& parameters = {});

  // Likewise a text that is used once.
  Result<PgRows> query_once(const std::string& sql);

  // Runs one or several statements without parameters and drops their rows.
  Status execute(const std::string& sql);

  // COPY ... FROM STDIN: begin with the statement, put bytes in its format, end.
  Status copy_begin(const char* sql);
  Status copy_put(std::string_view bytes);
  Status copy_end();
  void copy_abort();  // Nothing of it is kept. The connection is closed if that does not go well.

  // Whether the connection can be used no more.
  bool broken() const;
  void close() { connection_.reset(); }

  // For later queries.
  void set_query_seconds(double seconds) { options_.query_seconds = seconds; }

 private:
  PgConnection() = default;
  static Result<PgConnection> connect_one(const std::vector<const char*>& names,
                                          const std::vector<const char*>& values,
                                          const PgOptions& options);
  Status wait(bool for_write, double deadline);
  Status flush(double deadline);
  Result<PgRows> last_result(double deadline);
  Status give_up(Status why);
  Status connection_error(const char* doing) const;

  struct Finish {
    void operator()(pg_conn* connection) const;
  };
  std::unique_ptr<pg_conn, Finish> connection_;
  std::set<std::string> prepared_;  // Names of statements
  PgOptions options_;
  std::string place_;
};

// Runs `body` in a transaction: commits when it returns OK, else rolls back. A commit whose answer
// is lost is kIoError, and may have happened.
Status in_transaction(PgConnection& connection, const std::function<Status()>& body);

// Fields in the binary format of COPY (PostgreSQL manual, COPY, "Binary Format").
class PgCopyBuffer {
 public:
  PgCopyBuffer();  // Begins with the header
  void row(int16_t fields);
  void integer(int64_t value);  // bigint
  void small(int16_t value);    // smallint
  void bytes(std::string_view value);
  void end();
  std::string& buffer() { return buffer_; }

 private:
  std::string buffer_;
};

}  // namespace spillway
