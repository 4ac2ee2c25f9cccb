// A PostgreSQL of a test's own, in a temporary folder and on a Unix socket. It ends with the test,
// also when that crashes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "server/queue/postgres.h"

namespace spillway::test {

// Whether PostgreSQL is installed (Debian: postgresql); if not, skips the test.
bool has_postgres();

class PostgresServer {
 public:
  // As root it runs as the user postgres. REQUIRES: has_postgres().
  PostgresServer();
  ~PostgresServer();
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  // Anyone may connect, but for the user "locked", who needs the password "sesame".
  std::string url(const std::string& user = "spillway") const;
  // On any thread: what fails is thrown, as Catch's own checks are for one thread at a time.
  PgConnection connect(const PgOptions& options = {}) const;

  void start();
  void crash();           // Nothing is finished; start() recovers.
  void hang(bool hangs);  // All its processes stop, or go on.

 private:
  std::vector<pid_t> processes() const;

  std::string folder_;
  std::string programs_;  // The folder of initdb and postgres
  pid_t process_ = 0;
};

}  // namespace spillway::test
