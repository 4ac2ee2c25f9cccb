// [slow]: with a real server.
#include "server/queue/postgres.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "kernels/base/clock.h"
#include "tests/support/postgres_server.h"

namespace spillway::postgres_test {
namespace {

std::string message(const Status& status) {
  return std::string(status.message());
}

TEST_CASE("values come back from PostgreSQL as they were", "[slow]") {
  if (!test::has_postgres()) return;
  const test::PostgresServer server;
  PgConnection connection = server.connect();
  const std::string all_bytes = [] {
    std::string bytes;
    for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
    return bytes;
  }();
  PgParameters values;
  values.text("t\xc3\xa4xt")
      .optional_text("")
      .byte_arrays({all_bytes})
      .integer(INT64_MIN)
      .real(-0.1);
  values.boolean(true).integers({1, -2, INT64_MAX}).booleans({true, false});
  values.byte_arrays({all_bytes, ""}).texts({"a", "b,\"c"}).integers({});
  const Result<PgRows> rows = connection.query(
      "SELECT $1, $2, ($3)[1], $4, $5, $6, (SELECT sum(x)::bigint FROM unnest($7) x), ($8)[2], "
      "($9)[1],"
      " ($9)[2], ($10)[2], cardinality($11), (-3)::smallint, (-70000)::integer",
      values);
  INFO(message(rows.status()));
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 1);
  CHECK(rows->text(0, 0) == "t\xc3\xa4xt");
  CHECK(rows->null(0, 1));
  CHECK(rows->bytes(0, 2) == all_bytes);
  CHECK(rows->integer(0, 3) == INT64_MIN);
  CHECK(rows->real(0, 4) == -0.1);
  CHECK(rows->boolean(0, 5));
  CHECK(rows->integer(0, 6) == INT64_MAX - 1);
  CHECK_FALSE(rows->boolean(0, 7));
  CHECK(rows->bytes(0, 8) == all_bytes);
  CHECK(rows->bytes(0, 9).empty());
  CHECK(rows->text(0, 10) == "b,\"c");
  CHECK(rows->integer(0, 11) == 0);
  CHECK(rows->integer(0, 12) == -3);
  CHECK(rows->integer(0, 13) == -70000);
}

TEST_CASE("COPY brings rows in, whole or not at all", "[slow]") {
  if (!test::has_postgres()) return;
  const test::PostgresServer server;
  PgConnection connection = server.connect();
  REQUIRE(connection.execute("CREATE TABLE t (a bigint, b smallint, c bytea)").ok());
  constexpr const char* kCopy = "COPY t FROM STDIN (FORMAT binary)";
  const std::string large(100'000, '\0');
  const auto copy = [&](int64_t rows) -> Status {
    SPILLWAY_RETURN_IF_ERROR(connection.copy_begin(kCopy));
    PgCopyBuffer buffer;
    for (int64_t row = 0; row < rows; ++row) {
      buffer.row(3);
      buffer.integer(row);
      buffer.small(static_cast<int16_t>(-row));
      buffer.bytes(large);
      SPILLWAY_RETURN_IF_ERROR(connection.copy_put(std::exchange(buffer.buffer(), {})));
    }
    buffer.end();
    SPILLWAY_RETURN_IF_ERROR(connection.copy_put(buffer.buffer()));
    return connection.copy_end();
  };
  REQUIRE(copy(100).ok());
  const auto count = [&] {
    return connection.query("SELECT count(*), sum(length(c)), min(b) FROM t");
  };
  CHECK(count()->integer(0, 0) == 100);
  CHECK(count()->integer(0, 1) == 10'000'000);
  CHECK(count()->integer(0, 2) == -99);
  const Status undone = in_transaction(connection, [&]() -> Status {
    SPILLWAY_RETURN_IF_ERROR(copy(5));
    return {Code::kCapacity, "changed my mind"};
  });
  CHECK(undone.code() == Code::kCapacity);
  CHECK(count()->integer(0, 0) == 100);
}

TEST_CASE("errors say what kind they are, and never the password", "[slow]") {
  if (!test::has_postgres()) return;
  test::PostgresServer server;
  PgConnection connection = server.connect();
  const auto code = [&](const char* sql) { return connection.query(sql).status().code(); };
  CHECK(code("SELECT * FROM nowhere") == Code::kNotFound);
  CHECK(code("SELEC 1") == Code::kInvalidArgument);
  CHECK(code("SELECT 1/0") == Code::kInvalidArgument);
  CHECK_FALSE(connection.broken());
  CHECK(code("SELECT 1") == Code::kOk);

  const auto refused = [&](const std::string& url) {
    return PgConnection::connect(url, {}).status();
  };
  const Status password = refused(server.url("locked") + "&password=topsecret");
  CHECK(password.code() == Code::kInvalidArgument);
  CHECK_THAT(message(password), Catch::Contains("password authentication failed"));
  CHECK_THAT(message(password), !Catch::Contains("topsecret"));
  CHECK(PgConnection::connect(server.url("locked") + "&password=sesame", {}).ok());
  const Status without = refused(server.url("locked"));
  CHECK(without.code() == Code::kInvalidArgument);
  CHECK_THAT(message(without), Catch::Contains("PGPASSWORD"));
  const Status nobody = refused(server.url("nobody"));
  CHECK(nobody.code() == Code::kInvalidArgument);
  CHECK_THAT(message(nobody), Catch::Contains("\"nobody\" does not exist"));
  for (const char* url :
       {"postgresql://u:topsecret@%zz/x", "host='topsecret", "topsecret=1",
        "host=h password=to\"p ba\"topsecret", "postgresql://h/x?sslmode=topsecret"}) {
    const Status unreadable = refused(url);
    CHECK(unreadable.code() == Code::kInvalidArgument);
    CHECK_THAT(message(unreadable), Catch::Contains("postgresql://USER@HOST/DATABASE"));
    CHECK_THAT(message(unreadable), !Catch::Contains("topsecret"));
  }
  for (const char* url : {"postgresql://u:a@topsecret@h/x", "postgresql://u:a@topsecret:w@h/x"}) {
    const Status at = refused(url);
    CHECK(at.code() == Code::kInvalidArgument);
    CHECK_THAT(message(at), Catch::Contains("%40") && !Catch::Contains("topsecret"));
  }
  server.crash();
  CHECK(refused(server.url()).code() == Code::kIoError);
  CHECK(code("SELECT 1") == Code::kIoError);
  CHECK(connection.broken());
  server.start();
  CHECK(refused(server.url()).ok());
}

TEST_CASE("of several hosts the one that answers is taken", "[slow]") {
  if (!test::has_postgres()) return;
  test::PostgresServer silent, server;
  silent.hang(true);
  PgOptions options;
  options.connect_seconds = 0.5;
  const auto folder = [](const test::PostgresServer& of) {
    const std::string url = of.url();
    const size_t host = url.find("host=") + 5;
    return url.substr(host, url.find('&') - host);
  };
  const std::string hosts =
      "dbname=postgres user=spillway host=" + folder(silent) + "," + folder(server);
  Result<PgConnection> opened = PgConnection::connect(hosts, options);
  INFO(message(opened.status()));
  REQUIRE(opened.ok());
  CHECK_THAT(opened->place(), Catch::Contains(folder(server)));
  silent.hang(false);
}

TEST_CASE("a COPY that is given up leaves the connection as it was", "[slow]") {
  if (!test::has_postgres()) return;
  const test::PostgresServer server;
  PgConnection connection = server.connect();
  REQUIRE(connection.execute("CREATE TABLE t (a bigint)").ok());
  const Status why = in_transaction(connection, [&]() -> Status {
    SPILLWAY_RETURN_IF_ERROR(connection.copy_begin("COPY t FROM STDIN (FORMAT binary)"));
    PgCopyBuffer buffer;
    buffer.row(1);
    buffer.integer(7);
    SPILLWAY_RETURN_IF_ERROR(connection.copy_put(buffer.buffer()));
    connection.copy_abort();
    return {Code::kInvalidArgument, "the file has changed"};
  });
  CHECK(message(why) == "the file has changed");
  CHECK_FALSE(connection.broken());
  CHECK(connection.query("SELECT count(*) FROM t")->integer(0, 0) == 0);
}

TEST_CASE("a server that hangs is an error within the time limit", "[slow]") {
  if (!test::has_postgres()) return;
  test::PostgresServer server;
  PgOptions options;
  options.connect_seconds = 0.4;
  options.query_seconds = 0.4;
  PgConnection connection = server.connect(options);
  server.hang(true);
  const double began = steady_seconds();
  const Status query = connection.query("SELECT 1").status();
  CHECK(query.code() == Code::kIoError);
  CHECK_THAT(message(query), Catch::Contains("no answer"));
  CHECK(connection.broken());
  // Its answer, which may come yet, is nobody's.
  CHECK(connection.query("SELECT 2").status().code() == Code::kIoError);
  const Status connect = PgConnection::connect(server.url(), options).status();
  CHECK(connect.code() == Code::kIoError);
  CHECK_THAT(message(connect), Catch::Contains("no answer"));
  CHECK(steady_seconds() - began < 30);
  bool stop = false;
  options.query_seconds = 600;
  options.connect_seconds = 600;
  options.stop = [&] { return stop; };
  server.hang(false);
  PgConnection other = server.connect(options);
  server.hang(true);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = true;
  });
  CHECK(other.query("SELECT 1").status().code() == Code::kCancelled);
  later.join();
  server.hang(false);
}

}  // namespace
}  // namespace spillway::postgres_test
