// The Batch API from the client's side, against the server's own.
#include "server/client/batches_client.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>

#include "tests/server/batches/batch_server.h"
#include "tests/support/patience.h"

namespace spillway::batches_client_test {
namespace {

using test::batch_line;
using test::BatchServer;

BatchesClient client_of(const std::string& url, const std::string& key = "",
                        double patience_seconds = 600) {
  HttpCaller::Options calls;
  calls.api_key = key;
  PatientCaller::Options patience;
  patience.patience_seconds = patience_seconds;
  patience.first_pause_seconds = 0.02;
  patience.pause_seconds_max = 0.1;
  return BatchesClient(
      PatientCaller(HttpCaller(parse_server_address(url).value(), std::move(calls)), patience));
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

RemoteBatch wait_for_end(BatchesClient& client, const std::string& id) {
  RemoteBatch batch = client.retrieve(id).value();
  for (double waited = 0; !batch.ended() && waited < test::kPatience; waited += 0.01) {
    REQUIRE(client.pause(0.01).ok());
    batch = client.retrieve(id).value();
  }
  return batch;
}

TEST_CASE("a file goes to the server and a batch's results come back") {
  const TempDirectory folder;
  BatchServer server;
  BatchesClient client = client_of(server.url());
  std::string input;
  for (int i = 0; i < 20; ++i) {
    input += batch_line("l" + std::to_string(i), {{"prompt", "a"}, {"max_tokens", 2}});
  }
  input += batch_line("bad", {{"prompt", "a"}, {"max_tokens", -1}});
  write(folder / "in\"put.jsonl", input);
  uint64_t shown = 0;
  const auto show = [&](uint64_t done, uint64_t total) {
    shown = done;
    CHECK(total == input.size());
  };
  const std::string file = client.upload(folder / "in\"put.jsonl", show).value();
  CHECK(shown == input.size());
  RemoteBatch batch = client.create(file, "/v1/completions", "none").value();
  CHECK(batch.input_file == file);
  batch = wait_for_end(client, batch.id);
  CHECK(batch.status == "completed");
  CHECK(batch.total == 21);
  CHECK(batch.completed == 20);
  CHECK(batch.failed == 1);
  CHECK(batch.generated_tokens > 0);
  REQUIRE(client.download(batch.output_file, folder / "out", {}).ok());
  const std::string out = read(folder / "out");
  CHECK(std::count(out.begin(), out.end(), '\n') == 20);
  CHECK_THAT(out, Catch::Contains("\"l19\""));
  CHECK(client.cancel(batch.id).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a client waits for a server that loads its model") {
  const TempDirectory folder;
  BatchServer server;
  std::promise<void> refused;
  std::atomic<int> refusals{0};
  const auto observe = [&](const RequestReport& report) {
    if (report.status == 503 && refusals++ == 0) refused.set_value();
  };
  const auto http =
      HttpServer::start("127.0.0.1", 0, HttpLimits(), make_loading_router(Access()), observe)
          .value();
  auto loaded = std::async(std::launch::async, [&] {
    refused.get_future().wait();
    Router router = make_router(*server.api, Access());
    server.batches->add_routes(router);
    HttpLimits limits;
    limits.upload_bytes_max = size_t{64} << 20;
    http->serve(limits, std::move(router));
  });
  BatchesClient client = client_of(http->url());
  write(folder / "in.jsonl", batch_line("a", {{"prompt", std::string(900'000, 'a')}}));
  const auto file = client.upload(folder / "in.jsonl", {});
  INFO(file.status().message());
  CHECK(file.ok());
  CHECK(refusals > 0);
  if (refusals == 0) refused.set_value();
  loaded.get();
  http->stop();
}

TEST_CASE("files larger than a piece, and of any bytes, arrive as they are") {
  const TempDirectory folder;
  BatchServer server;
  BatchesClient client = client_of(server.url());
  std::string bytes(3'500'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  bytes += "\r\n--spillway-\r\n--\r\n";
  write(folder / "in", bytes);
  const std::string file = client.upload(folder / "in", {}).value();
  REQUIRE(client.download(file, folder / "back", {}).ok());
  CHECK(read(folder / "back") == bytes);
}

TEST_CASE("refusals say what, with which code, and what to do") {
  const TempDirectory folder;
  write(folder / "in", "x\n");
  BatchServer::Options options;
  options.keys = {"key"};
  options.files.file_bytes_max = 1000;
  BatchServer server(options);
  BatchesClient stranger = client_of(server.url());
  const Status no_key = stranger.upload(folder / "in", {}).status();
  CHECK(no_key.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(no_key.message()),
             Catch::Contains("401 invalid_api_key") && Catch::Contains("--api-key-file"));
  BatchesClient client = client_of(server.url(), "key");
  write(folder / "large", std::string(5'000'000, 'x'));
  const Status large = client.upload(folder / "large", {}).status();
  CHECK(large.code() == Code::kInvalidArgument);
  CHECK_THAT(std::string(large.message()), Catch::Contains("413"));
  CHECK_THAT(std::string(client.retrieve("batch_0").status().message()),
             Catch::Contains("404 not_found"));
  CHECK(client.upload(folder / "none", {}).status().code() == Code::kNotFound);
  CHECK(client.upload(folder.path(), {}).status().code() == Code::kInvalidArgument);
  const std::string file = client.upload(folder / "in", {}).value();
  const Status window = client.create(file, "/v1/completions", "1y").status();
  CHECK_THAT(std::string(window.message()), Catch::Contains("completion_window"));
  const RemoteBatch failed =
      wait_for_end(client, client.create(file, "/v1/completions", "24h")->id);
  CHECK(failed.status == "failed");
  REQUIRE(failed.faults.size() == 1);
  CHECK(failed.faults[0].starts_with("line 1: "));
}

// A server of other people: answers by a function.
std::unique_ptr<HttpServer> serve(std::function<void(const HttpRequest&, const ExchangePtr&)> all) {
  Router router;
  for (const char* method : {"GET", "POST"}) router.add({method, "/{*}", all});
  return HttpServer::start("127.0.0.1", 0, {}, std::move(router)).value();
}

void answer(const ExchangePtr& exchange, const Json& body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump();
  exchange->respond(std::move(response));
}

TEST_CASE("a batch whose making was not confirmed is found instead of made twice") {
  const int status = GENERATE(0, 502, 504);  // Of proxies; 0: the connection is lost
  std::mutex mutex;
  int made = 0;
  const auto server = serve([&](const HttpRequest& request, const ExchangePtr& exchange) {
    const std::lock_guard lock(mutex);
    const Json batch = {{"id", "batch_1"}, {"status", "validating"}, {"input_file_id", "file-1"}};
    if (request.method == "POST") {
      ++made;
      return status == 0 ? exchange->abort() : answer(exchange, "the upstream is away", status);
    }
    if (request.path == "/v1/batches/batch_1") return answer(exchange, batch);
    answer(exchange, {{"data", {{{"id", "batch_0"}, {"input_file_id", "file-0"}}, batch}}});
  });
  BatchesClient client = client_of(server->url());
  REQUIRE(client.retrieve("batch_1").ok());  // The server is known to be there.
  CHECK(client.create("file-1", "/v1/completions", "24h")->id == "batch_1");
  CHECK(made == 1);
}

TEST_CASE("a batch that is never made ends in an error when the patience does") {
  std::mutex mutex;
  int tries = 0;
  const auto server = serve([&](const HttpRequest& request, const ExchangePtr& exchange) {
    const std::lock_guard lock(mutex);
    if (request.method == "GET") return answer(exchange, {{"data", Json::array()}});
    ++tries;
    answer(exchange, {{"error", {{"message", "upstream timed out"}}}}, 504);
  });
  BatchesClient client = client_of(server->url(), "", 2);  // Several tries, also of a slow build
  const Status status = client.create("file-1", "/v1/completions", "24h").status();
  CHECK(status.code() == Code::kIoError);
  CHECK_THAT(std::string(status.message()), Catch::Contains("starting the batch"));
  CHECK(tries > 1);
}

TEST_CASE("what another program answers is taken for nothing") {
  Json body;
  const auto server =
      serve([&](const HttpRequest&, const ExchangePtr& exchange) { answer(exchange, body); });
  BatchesClient client = client_of(server->url());
  for (const Json& given : {Json("hello"), Json::array(), Json::object(), Json{{"id", 7}},
                            Json{{"id", "../../etc"}, {"status", "completed"}},
                            Json{{"id", ".."}, {"status", "completed"}}, Json{{"id", "batch_1"}}}) {
    body = given;
    INFO(given.dump());
    const Status status = client.retrieve("batch_1").status();
    CHECK(status.code() == Code::kIoError);
    CHECK_THAT(std::string(status.message()), Catch::Contains("another program"));
  }
  body = {{"id", "batch_1"},
          {"status", "failed"},
          {"request_counts", 7},
          {"errors", {{"data", {7, {{"line", 3}, {"message", "a\x1b[2Jb\nc"}}}}}}};
  const RemoteBatch batch = client.retrieve("batch_1").value();
  CHECK(batch.total == 0);
  CHECK(batch.faults == std::vector<std::string>{"line 3: a [2Jb c"});
}

TEST_CASE("errors without a body of ours are errors all the same") {
  HttpReply reply;
  reply.status = 502;
  reply.body = "<html>Bad Gateway</html>";
  CHECK(error_of(reply, "x").code() == Code::kIoError);
  CHECK_THAT(std::string(error_of(reply, "x").message()), Catch::Contains("502"));
  reply.status = 404;
  reply.body = R"({"error":{"code":"unknown_url","message":"Invalid URL"}})";
  CHECK_THAT(std::string(error_of(reply, "x").message()), Catch::Contains("--batch-dir"));
}

}  // namespace
}  // namespace spillway::batches_client_test
