#include "tests/support/postgres_server.h"

#include <dirent.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/support/patience.h"
#include "tests/support/skip.h"

namespace spillway::test {
namespace {

std::string programs() {
  namespace fs = std::filesystem;
  std::string found;
  std::error_code error;
  for (const fs::directory_entry& version : fs::directory_iterator("/usr/lib/postgresql", error)) {
    const fs::path bin = version.path() / "bin";
    if (fs::exists(bin / "postgres") && bin.string() > found) found = bin.string();
  }
  return found;
}

// Starts a program as the user postgres if this one is root; it ends with this one.
pid_t begin(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const passwd* const other = ::geteuid() == 0 ? ::getpwnam("postgres") : nullptr;
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (other != nullptr && (::setgid(other->pw_gid) != 0 || ::setuid(other->pw_uid) != 0))
    ::_exit(126);
  ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
  if (std::freopen(log.c_str(), "a", stdout) == nullptr) ::_exit(126);
  ::dup2(STDOUT_FILENO, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

bool has_postgres() {
  if (!programs().empty()) return true;
  skip("PostgreSQL is not installed (Debian: postgresql)");
  return false;
}

PostgresServer::PostgresServer() : programs_(programs()) {
  std::string name = (std::filesystem::temp_directory_path() / "spillway-pg-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  folder_ = name;
  if (const passwd* other = ::getpwnam("postgres"); ::geteuid() == 0 && other != nullptr) {
    REQUIRE(::chown(folder_.c_str(), other->pw_uid, other->pw_gid) == 0);
  }
  const pid_t init = begin({programs_ + "/initdb", "--no-sync", "--auth=trust",
                            "--username=spillway", "--pgdata=" + folder_ + "/data"},
                           folder_ + "/log");
  int status = 0;
  REQUIRE(::waitpid(init, &status, 0) == init);
  INFO(contents(folder_ + "/log"));
  REQUIRE(status == 0);
  std::ofstream(folder_ + "/data/pg_hba.conf")
      << "local all locked scram-sha-256\nlocal all all trust\n";
  start();
  PgConnection connection = connect();
  REQUIRE(connection.execute("CREATE USER locked PASSWORD 'sesame'").ok());
}

PostgresServer::~PostgresServer() {
  if (process_ != 0) {
    hang(false);
    crash();
  }
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string PostgresServer::url(const std::string& user) const {
  return "postgresql:///postgres?host=" + folder_ + "&user=" + user;
}

PgConnection PostgresServer::connect(const PgOptions& options) const {
  Result<PgConnection> opened = PgConnection::connect(url(), options);
  if (!opened.ok()) throw std::runtime_error(std::string(opened.status().message()));
  return std::move(opened).value();
}

void PostgresServer::start() {
  process_ = begin(
      {programs_ + "/postgres", "-D", folder_ + "/data", "-k", folder_, "-c", "listen_addresses="},
      folder_ + "/log");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
  while (!PgConnection::connect(url(), {}).ok()) {
    INFO(contents(folder_ + "/log"));
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void PostgresServer::crash() {
  ::kill(process_, SIGQUIT);
  ::waitpid(process_, nullptr, 0);
  process_ = 0;
}

void PostgresServer::hang(bool hangs) {
  for (const pid_t process : processes()) ::kill(process, hangs ? SIGSTOP : SIGCONT);
}

// The server and its children.
std::vector<pid_t> PostgresServer::processes() const {
  std::vector<pid_t> all = {process_};
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream stat(entry.path() / "stat");
    std::string pid, name, state;
    pid_t parent = 0;
    if (stat >> pid >> name >> state >> parent && parent == process_) {
      all.push_back(static_cast<pid_t>(std::stol(pid)));
    }
  }
  return all;
}

}  // namespace spillway::test
