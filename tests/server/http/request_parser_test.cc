// RequestParser: hostile framing, limits at the limit and one above, and every way to split bytes.
#include <catch2/catch.hpp>

#include "server/http/framing.h"
#include "server/http/request_parser.h"
#include "server/http/router.h"
#include "server/http/sse.h"

namespace spillway::request_parser_test {
namespace {

using State = RequestParser::State;

// What a byte stream is read as: "METHOD path body|", one after the other, and "!status" at an
// error.
std::string read_all(std::string_view bytes, size_t step, const HttpLimits& limits = {}) {
  RequestParser parser(limits);
  std::string seen;
  const auto limited = [&] {
    const bool head = parser.state() == State::kBody || parser.state() == State::kComplete;
    return head ? parser.limit_body(limits.body_bytes_max) : parser.state();
  };
  const auto drain = [&] {
    while (limited() == State::kComplete) {
      const HttpRequest request = parser.take();
      seen += request.method + " " + request.path + " " + request.body + "|";
      parser.feed("");
    }
  };
  for (size_t at = 0; at < bytes.size() && parser.state() != State::kFailed; at += step) {
    parser.feed(bytes.substr(at, step));
    drain();
  }
  if (parser.state() == State::kFailed) seen += "!" + std::to_string(parser.error().status);
  return seen;
}

std::string post(const std::string& fields, const std::string& body) {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body;
}

TEST_CASE("framing that two readers could read differently is refused") {
  const std::string ok = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::pair<std::string, const char*> cases[] = {
      {post("Content-Length: 4\r\n", "body"), "POST /x body|"},
      {post("Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n"), "POST /x body|"},
      {post("Transfer-Encoding: Chunked\r\n", "4;a=b\r\nbody\r\n0\r\nX: y\r\n\r\n"),
       "POST /x body|"},
      {"GET http://host/abs?q HTTP/1.1\r\nHost: a\r\n\r\n", "GET /abs |"},
      {"GET /old HTTP/1.0\r\n\r\n", "GET /old |"},
      {"\r\n\r\n" + ok, "GET /next |"},
      {post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n"), "!400"},
      {post("Content-Length: 4\r\nContent-Length: 5\r\n", "body"), "!400"},
      {post("Content-Length: 4\r\nContent-Length: 4\r\n", "body"), "!400"},
      {post("Content-Length: 4, 4\r\n", "body"), "!400"},
      {post("Content-Length: +4\r\n", "body"), "!400"},
      {post("Content-Length: -1\r\n", "body"), "!400"},
      {post("Content-Length: 0x4\r\n", "body"), "!400"},
      {post("Content-Length:\r\n", "body"), "!400"},
      {post("Content-Length: 18446744073709551616\r\n", "body"), "!400"},
      {post("Content-Length: 10000000000\r\n", "body"), "!413"},
      {post("Transfer-Encoding: chunked\r\n", "-2\r\nbody\r\n0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding: chunked\r\n", "0x4\r\nbody\r\n0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding: chunked\r\n", "4\r\nbodyX\r\n0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding: chunked, identity\r\n", "hello"), "!400"},
      {post("Transfer-Encoding: identity, chunked\r\n", "hello"), "!400"},
      {post("Transfer-Encoding: xchunked\r\n", "hello"), "!400"},
      {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), "!400"},
      {post("Transfer-Encoding:\x0b"
            "chunked\r\n",
            "0\r\n\r\n"),
       "!400"},
      {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "!400"},
      {post("X: a\r\n b\r\n", ""), "!400"},
      {post("X: a\n", ""), "!400"},
      {post("X: a\rb\r\n", ""), "!400"},
      {post(std::string("X: a\0b\r\n", 8), ""), "!400"},
      {post("X : a\r\n", ""), "!400"},
      {post("X a\r\n", ""), "!400"},
      {post(": a\r\n", ""), "!400"},
      {post("Host: b\r\n", ""), "!400"},
      {"GET / HTTP/1.1\r\n\r\n", "!400"},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "!400"},
      {"GET /\r\nHost: a\r\n\r\n", "!400"},
      {"get / HTTP/1.1\r\nHost: a\r\n\r\n", "!400"},
      {"GET relative HTTP/1.1\r\nHost: a\r\n\r\n", "!400"},
      {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "!400"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "!400"},
      {"\x16\x03\x01\x02", "!400"},
      {post("Expect: more\r\n", ""), "!417"},
  };
  for (const auto& [bytes, expected] : cases) {
    INFO(bytes);
    // Nothing behind an error is a request; what follows a good request is.
    const bool good = expected[0] != '!';
    const std::string whole = good ? std::string(expected) + "GET /next |" : expected;
    CHECK(read_all(bytes + ok, bytes.size() + ok.size()) == whole);
    for (const size_t step : {1u, 2u, 3u, 7u}) CHECK(read_all(bytes + ok, step) == whole);
  }
}

TEST_CASE("few line ends may precede a request, and they begin none") {
  const std::string ok = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
  const auto ends = [](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "\r\n";
    return text;
  };
  for (const size_t step : {size_t{1}, size_t{3}, size_t{1} << 20}) {
    INFO(step);
    CHECK(read_all(ends(4) + ok + ends(4) + ok, step) == "GET /next |GET /next |");
    CHECK(read_all(ends(5) + ok, step) == "!400");
    CHECK(read_all(ok + ends(5), step) == "GET /next |!400");
    CHECK(read_all(ends(30'000), step) == "!400");
  }
  const HttpLimits limits;
  RequestParser parser(limits);
  for (const char* bytes : {"\r", "\n", "\r\n\r"}) {
    CHECK(parser.feed(bytes) == State::kHeader);
    CHECK_FALSE(parser.started());
  }
  parser.feed("\nG");
  CHECK(parser.started());
}

TEST_CASE("a chunk size near 2^64 never becomes a small one") {
  for (const char* size : {"fffffffffffffffe", "ffffffffffffffff", "10000000000000004"}) {
    const std::string bytes =
        post("Transfer-Encoding: chunked\r\n", std::string(size) + "\r\nbody\r\n0\r\n\r\n");
    INFO(bytes);
    const std::string seen = read_all(bytes, bytes.size());
    CHECK((seen == "!400" || seen == "!413"));
    CHECK(read_all(bytes, 1) == seen);
  }
}

TEST_CASE("limits hold at the limit and one above") {
  HttpLimits limits;
  limits.header_bytes_max = 200;
  limits.header_fields_max = 5;
  limits.body_bytes_max = 10;
  limits.chunk_extension_bytes_max = 8;
  const auto check = [&](const std::string& bytes, const std::string& expected) {
    INFO(bytes.size());
    CHECK(read_all(bytes, bytes.size(), limits) == expected);
    CHECK(read_all(bytes, 1, limits) == expected);
  };
  const auto header = [](size_t bytes) {
    const std::string empty = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
    return "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(bytes - empty.size(), 'x') + "\r\n\r\n";
  };
  check(header(200), "GET / |");
  check(header(201), "!431");
  check("GET /" + std::string(300, 'x'), "!431");  // Without an end
  const auto fields = [](int count) {
    std::string text = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (int i = 1; i < count; ++i) text += "X: y\r\n";
    return text + "\r\n";
  };
  check(fields(5), "GET / |");
  check(fields(6), "!431");
  check(post("Content-Length: 10\r\n", "0123456789"), "POST /x 0123456789|");
  check(post("Content-Length: 11\r\n", "01234567890"), "!413");
  check(post("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n"),
        "POST /x 0123456789|");
  check(post("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n1\r\n0\r\n0\r\n\r\n"), "!413");
  check(post("Transfer-Encoding: chunked\r\n", "1;aaaaaaa\r\nx\r\n0\r\n\r\n"), "POST /x x|");
  check(post("Transfer-Encoding: chunked\r\n", "1;aaaa\r\nx\r\n1;aaaa\r\nx\r\n0\r\n\r\n"), "!400");
}

TEST_CASE("memory for a body is set aside as it comes, or when it is asked for") {
  HttpLimits limits;
  limits.upload_bytes_max = size_t{1} << 30;
  RequestParser parser(limits);
  parser.feed(post("Content-Length: 1073741824\r\n", "body"));
  REQUIRE(parser.state() == State::kBody);
  CHECK(parser.body_bytes() == 4);
  const std::string first = parser.take_body();
  CHECK(first == "body");
  CHECK(first.capacity() < 1000);
  parser.feed(std::string(1000, 'x'));
  CHECK(parser.take_body().capacity() < 10'000);

  RequestParser held(limits);
  held.feed(post("Content-Length: 100000\r\n", "body"));
  held.reserve_body();
  held.feed(std::string(99'996, 'x'));
  REQUIRE(held.state() == State::kComplete);
  const std::string body = held.take().body;
  CHECK(body == "body" + std::string(99'996, 'x'));
  CHECK(body.capacity() < 110'000);
}

TEST_CASE("endless chunk lines and trailers end early") {
  const HttpLimits limits;
  RequestParser parser(limits);
  parser.feed(post("Transfer-Encoding: chunked\r\n", "0\r\n"));
  const std::string line = "X-Trailer: " + std::string(1000, 'x') + "\r\n";
  for (int i = 0; i < 1000 && parser.state() != State::kFailed; ++i) {
    parser.feed(line);
    REQUIRE(parser.waiting_bytes() < 20'000);
  }
  CHECK(parser.state() == State::kFailed);
}

TEST_CASE("fields in a trailer do not count") {
  const HttpLimits limits;
  RequestParser parser(limits);
  parser.feed(post("Transfer-Encoding: chunked\r\n",
                   "0\r\nAuthorization: Bearer k\r\nContent-Type: a/b\r\n\r\n"));
  REQUIRE(parser.state() == State::kComplete);
  const HttpRequest request = parser.take();
  CHECK(request.authorization.empty());
  CHECK(request.content_type.empty());
}

TEST_CASE("a request keeps what handlers need") {
  const HttpLimits limits;
  RequestParser parser(limits);
  parser.feed(
      "POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
      "X-Request-Id: abc-1\r\nConnection: close\r\nExpect: 100-continue\r\n"
      "Content-Length: 2\r\n\r\n");
  REQUIRE(parser.state() == State::kBody);
  CHECK(parser.wants_continue());
  parser.feed("hi");
  const HttpRequest request = parser.take();
  CHECK(request.path == "/v1/x");
  CHECK(request.query == "a=b");
  CHECK(request.request_id == "abc-1");
  CHECK_FALSE(request.keep_alive);
  parser.feed("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\tb<>\r\n\r\n");
  CHECK(parser.take().request_id.starts_with("req-"));
}

TEST_CASE("a field is found in lines that nothing has checked") {
  const std::string block =
      "GET / x-id: no\r\nx-i: 1\r\n\r\nx-id\r\nX-ID: \t a b\t\r\nx-id: c\r\nlast: d";
  CHECK(header_field(block, "x-id") == "a b");
  CHECK(header_field(block, "last").empty());
  CHECK(header_field(block, "none").empty());
  CHECK(header_field("", "x").empty());
  CHECK(header_field("\r\n", "x").empty());
}

TEST_CASE("routes match literally, with named errors") {
  Router router(Access{{"key"}, {}, false, ""});
  const auto none = [](HttpRequest, const ExchangePtr&) {};
  router.add({"GET", "/a", none});
  router.add({"POST", "/a", none, true});
  router.add({"GET", "/a/{}/b", none});
  router.add({"GET", "/health", none, false, true});
  router.add({"GET", "/models/{*}", none});
  const auto find = [&](const char* method, const char* path, const char* key = "Bearer key",
                        const char* type = "") -> int {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.authorization = key;
    request.content_type = type;
    const auto found = router.find(request);
    const auto* response = std::get_if<HttpResponse>(&found);
    return response == nullptr ? 200 : response->status;
  };
  CHECK(find("GET", "/a") == 200);
  CHECK(find("GET", "/a/x/b") == 200);
  for (const char* path :
       {"/", "//a", "/a/", "/A", "/%61", "/a/../a", "/a/x", "/a//b", "/a/x/b/"}) {
    CHECK(find("GET", path) == 404);
  }
  CHECK(find("PUT", "/a") == 405);
  CHECK(find("HEAD", "/a") == 200);
  CHECK(find("HEAD", "/nowhere") == 404);
  CHECK(find("GET", "/models/a") == 200);
  CHECK(find("GET", "/models/a/b/c") == 200);
  for (const char* path : {"/models", "/models/", "/models/%", "/models/%2", "/models/%2x"}) {
    CHECK(find("GET", path) == 404);
  }
  CHECK(find("GET", "/health", "") == 200);
  for (const char* key :
       {"", "key", "Bearer ", "Bearer ke", "Bearer keyy", "Basic key", "Bearerkey"}) {
    CHECK(find("GET", "/a", key) == 401);
    CHECK(find("GET", "/nowhere", key) == 401);
  }
  for (const char* key : {"bearer key", "BEARER key", "Bearer  key"}) {
    CHECK(find("GET", "/a", key) == 200);
  }
  for (const char* type : {"application/json", "APPLICATION/JSON; charset=utf-8", ""}) {
    CHECK(find("POST", "/a", "Bearer key", type) == 200);
  }
  for (const char* type :
       {"application/json;charset=UTF-8", "application/json; charset=\"utf-8\""}) {
    CHECK(find("POST", "/a", "Bearer key", type) == 200);
  }
  for (const char* type :
       {"text/plain", "application/jsonx", "x", "application/json; charset=utf-16",
        "application/json; charset=latin1"}) {
    CHECK(find("POST", "/a", "Bearer key", type) == 415);
  }
  CHECK(equal_in_constant_time("", ""));
  CHECK_FALSE(equal_in_constant_time("", "a"));
}

TEST_CASE("parameters of a path are decoded") {
  Router router;
  router.add({"GET", "/models/{*}", [](HttpRequest, const ExchangePtr&) {}});
  const auto parameter = [&](const char* path) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    REQUIRE(std::holds_alternative<const Route*>(router.find(request)));
    return request.parameters.front();
  };
  CHECK(parameter("/models/facebook/opt-125m") == "facebook/opt-125m");
  CHECK(parameter("/models/facebook%2Fopt-125m") == "facebook/opt-125m");
  CHECK(parameter("/models/a%2f%25%C3%a9") == "a/%\xc3\xa9");
}

// What a request from a page of `origin` to the address `host` is answered; 200: not refused.
int asked(const Access& access, const std::string& origin, const std::string& host) {
  HttpRequest request;
  request.origin = origin;
  request.host = host;
  const auto refusal = access.refuse(request);
  return refusal ? refusal->status : 200;
}

TEST_CASE("without a key web pages of other sites are refused") {
  const Access open;
  CHECK(asked(open, "", "127.0.0.1:8000") == 200);
  CHECK(asked(open, "http://127.0.0.1:8000", "127.0.0.1:8000") == 200);
  CHECK(asked(open, "https://API.example.org", "api.example.org") == 200);
  for (const char* foreign : {"https://evil.example", "http://127.0.0.1:3000", "null", "x",
                              "http://127.0.0.1:8000.evil.example"}) {
    INFO(foreign);
    CHECK(asked(open, foreign, "127.0.0.1:8000") == 403);
  }
  Access some;
  some.allowed_origins = {"https://ui.example", "http://127.0.0.1:3000"};
  CHECK(asked(some, "https://UI.example", "127.0.0.1:8000") == 200);
  CHECK(asked(some, "http://127.0.0.1:3000", "127.0.0.1:8000") == 200);
  CHECK(asked(some, "http://ui.example", "127.0.0.1:8000") == 403);
  some.allowed_origins = {"*"};
  CHECK(asked(some, "https://evil.example", "127.0.0.1:8000") == 200);
  const Access locked{{"key"}, {}, true, "127.0.0.1"};
  CHECK(asked(locked, "", "127.0.0.1:8000") == 401);
  HttpRequest page;  // That has the key may ask: someone gave it to it.
  page.origin = "https://ui.example";
  page.host = "elsewhere.example";
  page.authorization = "Bearer key";
  CHECK_FALSE(locked.refuse(page));
}

TEST_CASE("a server without keys answers to its own names only") {
  Access local;
  local.known_names_only = true;
  local.host = "Workstation";
  local.allowed_hosts = {"GPU.example.org", "box"};
  for (const char* host :
       {"127.0.0.1:8000", "127.0.0.1", "localhost:8000", "LOCALHOST", "localhost.:8000",
        "[::1]:8000", "[fe80::1%eth0]", "a.localhost:1", "workstation:8000", "10.0.0.7",
        "gpu.example.org", "gpu.EXAMPLE.org.:8000", "box:80", ""}) {
    INFO(host);
    CHECK(asked(local, "", host) == 200);
    CHECK(asked(local, "https://" + std::string(host), host) == 200);
  }
  // A page of this name whose name server now says 127.0.0.1: origin and host are the same.
  CHECK(asked(local, "http://evil.example:8000", "evil.example:8000") == 403);
  for (const char* host :
       {"evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost",
        "x.gpu.example.org", "example.org", "1.2.3", "1.2.3.4.5", "[::1", "[evil]", "[]", ":80",
        ".", "[::1].evil.example", "[::1]x"}) {
    INFO(host);
    CHECK_FALSE(local.knows_host(host));
    CHECK(asked(local, "", host) == 403);
  }
  // What is allowed beside it decides, too.
  local.allowed_origins = {"https://ui.example"};
  CHECK(asked(local, "https://ui.example", "evil.example") == 200);
  local.allowed_hosts = {"*"};
  CHECK(asked(local, "", "evil.example:8000") == 200);
  CHECK(asked(local, "http://other.example", "evil.example:8000") == 403);
  local.allowed_hosts.clear();
  local.known_names_only = false;
  CHECK(asked(local, "", "evil.example:8000") == 200);
}

TEST_CASE("events and chunks have their exact form") {
  CHECK(sse_event("{}") == "data: {}\n\n");
  CHECK(chunk("0123456789abcdef") == "10\r\n0123456789abcdef\r\n");
}

}  // namespace
}  // namespace spillway::request_parser_test
