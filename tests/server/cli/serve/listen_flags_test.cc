// Where serve listens: which flags go together, and Unix sockets from their making to their end.
#include "server/cli/serve/listen_flags.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "server/http/server.h"
#include "tests/support/temp_directory.h"

namespace spillway::listen_flags_test {
namespace {

// The flags that `given` makes, as --name value; or why it is refused.
Result<ListenFlags> flags_of(std::map<std::string, std::string> given) {
  ListenFlags flags;
  Settings settings;
  add_listen_flags(settings, &flags);
  SettingInputs inputs;
  inputs.flags = std::move(given);
  SPILLWAY_RETURN_IF_ERROR(resolve(settings, inputs));
  SPILLWAY_RETURN_IF_ERROR(settle(settings, &flags));
  SPILLWAY_RETURN_IF_ERROR(validate(flags));
  return flags;
}

std::string refusal(std::map<std::string, std::string> given) {
  return std::string(flags_of(std::move(given)).status().message());
}

TEST_CASE("a Unix socket stands alone unless a port is given") {
  CHECK(flags_of({})->tcp);
  CHECK(flags_of({})->port == 8000);
  const ListenFlags alone = flags_of({{"socket", "/x"}}).value();
  CHECK_FALSE(alone.tcp);
  CHECK(alone.socket_mode == 0600);
  CHECK(flags_of({{"socket", "/x"}, {"port", "8000"}})->tcp);
  CHECK(flags_of({{"socket", "/x"}, {"port", "1"}, {"host", "0.0.0.0"}})->tcp);
  CHECK_THAT(refusal({{"socket", "/x"}, {"host", "0.0.0.0"}}), Catch::Contains("--port"));
  CHECK_THAT(refusal({{"socket-mode", "0660"}}), Catch::Contains("--socket PATH"));
  CHECK(flags_of({{"socket", "/x"}, {"socket-mode", "0660"}})->socket_mode == 0660);
  CHECK(flags_of({{"socket", "/x"}, {"socket-mode", "777"}})->socket_mode == 0777);
  for (const char* mode : {"", "6", "060", "0888", "rw", "01777", "0x1ff", "0660 "}) {
    INFO(mode);
    CHECK_FALSE(flags_of({{"socket", "/x"}, {"socket-mode", mode}}).ok());
  }
}

TEST_CASE("allowed names are names, and allowed origins are origins") {
  CHECK(flags_of({{"allowed-host", "gpu.example.org,box"}})->allowed_hosts.size() == 2);
  CHECK(flags_of({{"allowed-host", "*"}}).ok());
  for (const char* name : {"", "a,", "http://a", "a:8000", "a/b", "a b", "user@a"}) {
    INFO(name);
    CHECK_THAT(refusal({{"allowed-host", name}}), Catch::Contains("--allowed-host"));
  }
  CHECK(flags_of({{"allowed-origins", "https://a.example:80,*"}}).ok());
  for (const char* origin : {"", "a.example", "https://a.example/", "://x"}) {
    CHECK_THAT(refusal({{"allowed-origins", origin}}), Catch::Contains("--allowed-origins"));
  }
}

// What a server on the Unix socket answers to GET /; empty: nobody listens.
std::string ask(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    CHECK(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size()));
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(fd, bytes, sizeof(bytes))) > 0;) {
      answer.append(bytes, static_cast<size_t>(count));
    }
  }
  ::close(fd);
  return answer;
}

Router hello() {
  Router router;
  router.add({"GET", "/", [](const HttpRequest&, const ExchangePtr& exchange) {
                HttpResponse response;
                response.body = "hello";
                exchange->respond(response);
              }});
  return router;
}

bool exists(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0;
}

mode_t mode_of(const std::string& path) {
  struct stat found {};
  REQUIRE(::lstat(path.c_str(), &found) == 0);
  CHECK(S_ISSOCK(found.st_mode));
  return found.st_mode & 0777;
}

TEST_CASE("a server answers on a Unix socket, beside a port or alone") {
  const TempDirectory folder;
  ListenFlags flags;
  flags.port = 0;
  flags.socket = folder / "spillway.sock";
  for (const bool tcp : {false, true}) {
    flags.tcp = tcp;
    auto server = HttpServer::start(open_listeners(flags).value(), {}, hello()).value();
    CHECK((server->port() != 0) == tcp);
    CHECK(server->urls().size() == (tcp ? 2 : 1));
    CHECK(server->urls().back() == "unix:" + flags.socket);
    CHECK(mode_of(flags.socket) == 0600);
    for (int i = 0; i < 3; ++i) CHECK_THAT(ask(flags.socket), Catch::EndsWith("hello"));
    server->stop();
    CHECK_FALSE(exists(flags.socket));
    CHECK(ask(flags.socket).empty());
  }
}

TEST_CASE("a Unix socket has the permissions that were asked for, whatever the umask") {
  const TempDirectory folder;
  const std::string path = folder / "s";
  for (const mode_t mode : {0600, 0660, 0666}) {
    const mode_t before = ::umask(0077);
    const auto listener = HttpListener::bind_socket(path, mode);
    ::umask(before);
    REQUIRE(listener.ok());
    CHECK(mode_of(path) == mode);
  }
  CHECK_FALSE(exists(path));
}

TEST_CASE("a socket that was left behind is replaced, and nothing else is") {
  const TempDirectory folder;
  const std::string path = folder / "s";
  {  // What a killed server leaves: a socket that nobody listens at.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    ::close(fd);
  }
  REQUIRE(exists(path));
  auto first = HttpListener::bind_socket(path, 0600);
  REQUIRE(first.ok());
  const Status taken = HttpListener::bind_socket(path, 0600).status();
  CHECK(taken.code() == Code::kIoError);
  CHECK_THAT(std::string(taken.message()), Catch::Contains("another process listens"));
  CHECK(exists(path));
  std::ofstream(folder / "file") << "mine";
  for (const std::string& other : {folder / "file", folder.path()}) {
    const Status status = HttpListener::bind_socket(other, 0600).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains("no socket"));
    CHECK(exists(other));
  }
  CHECK(HttpListener::bind_socket(folder / "none/s", 0600).status().code() == Code::kNotFound);
  const Status long_path = HttpListener::bind_socket(folder / std::string(200, 'x'), 0600).status();
  CHECK_THAT(std::string(long_path.message()), Catch::Contains("107"));
  CHECK_FALSE(HttpListener::bind_socket("", 0600).ok());
}

TEST_CASE("a server that ends leaves another's socket alone") {
  const TempDirectory folder;
  const std::string path = folder / "s";
  auto first =
      HttpServer::start(HttpListener::bind_socket(path, 0600).value(), {}, hello()).value();
  REQUIRE(::unlink(path.c_str()) == 0);  // Somebody made room by hand.
  auto second =
      HttpServer::start(HttpListener::bind_socket(path, 0600).value(), {}, hello()).value();
  first->stop();
  CHECK_THAT(ask(path), Catch::EndsWith("hello"));
  second->stop();
  CHECK_FALSE(exists(path));
}

}  // namespace
}  // namespace spillway::listen_flags_test
