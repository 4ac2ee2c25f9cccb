// [slow]: with a real server.
#include "server/queue/queue_schema.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/postgres_server.h"

namespace spillway::queue_schema_test {
namespace {

TEST_CASE("tables of the queue are made once, and brought to newer versions", "[slow]") {
  if (!test::has_postgres()) return;
  const test::PostgresServer server;
  PgConnection connection = server.connect();
  const Status none = check_queue(connection);
  CHECK(none.code() == Code::kNotFound);
  CHECK_THAT(std::string(none.message()), Catch::Contains("spillway queue submit"));

  constexpr const char* kSteps[] = {"CREATE TABLE spillway.t (a bigint)",
                                    "ALTER TABLE spillway.t ADD b bigint; INSERT INTO spillway.t "
                                    "VALUES (1, 2)",
                                    "UPDATE spillway.t SET a = a + b"};
  const std::span<const char* const> all(kSteps);
  REQUIRE(migrate_queue(connection, all.first(1)).ok());
  CHECK(check_queue(connection, all.first(1)).ok());
  const Status old = check_queue(connection, all);
  CHECK(old.code() == Code::kInfeasible);
  CHECK_THAT(std::string(old.message()),
             Catch::Contains("of version 1") && Catch::Contains("needs 3"));
  // From any version to the newest, by several at once: each step once.
  std::vector<std::thread> others;
  std::vector<Status> migrated(4);
  for (Status& status : migrated) {
    others.emplace_back([&] {
      PgConnection own = server.connect();
      status = migrate_queue(own, all);
    });
  }
  for (std::thread& other : others) other.join();
  for (const Status& status : migrated) CHECK(status.message() == "");
  CHECK(check_queue(connection, all).ok());
  const Result<PgRows> rows = connection.query("SELECT a, b FROM spillway.t");
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 1);
  CHECK(rows->integer(0, 0) == 3);
  const Status newer = migrate_queue(connection, all.first(2));
  CHECK(newer.code() == Code::kInfeasible);
  CHECK_THAT(std::string(newer.message()), Catch::Contains("of version 3"));
  CHECK(check_queue(connection, all.first(2)).code() == Code::kInfeasible);
}

TEST_CASE("a step that fails leaves the version before it", "[slow]") {
  if (!test::has_postgres()) return;
  const test::PostgresServer server;
  PgConnection connection = server.connect();
  constexpr const char* kSteps[] = {"CREATE TABLE spillway.t (a bigint)",
                                    "CREATE TABLE spillway.u (a bigint); SELECT 1/0"};
  const std::span<const char* const> all(kSteps);
  CHECK_FALSE(migrate_queue(connection, all).ok());
  CHECK(check_queue(connection, all.first(1)).code() == Code::kNotFound);
  REQUIRE(migrate_queue(connection, all.first(1)).ok());
  CHECK(check_queue(connection, all.first(1)).ok());
}

}  // namespace
}  // namespace spillway::queue_schema_test
