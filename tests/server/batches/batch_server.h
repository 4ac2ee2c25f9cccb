// A server with files and batches over a fake scheduler, for their tests and those of their
// clients. stop() and begin() as a process that ends and starts again at the same port.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/batches/batch_service.h"
#include "tests/server/api/api_support.h"
#include "tests/server/batches/batch_lines.h"
#include "tests/support/temp_directory.h"

namespace spillway::test {

struct BatchServer {
  struct Options {
    FakeScheduler::Options engine;
    FileLimits files;
    int64_t lines_max = 1000;
    int64_t unfinished_max = 1000;
    std::vector<std::string> keys;
    bool started = true;  // Else nothing is looked through or run
  };

  BatchServer() : BatchServer(Options()) {}
  explicit BatchServer(Options given) : options(std::move(given)) { begin(); }
  ~BatchServer() { stop(); }
  BatchServer(const BatchServer&) = delete;
  BatchServer& operator=(const BatchServer&) = delete;

  void begin() {
    engine = std::make_unique<FakeScheduler>(options.engine);
    ApiContext context = fake_context(engine->shape(), &tokenizer);
    context.chat = &chat;
    api = std::make_unique<ApiService>(*engine, std::move(context), 32);
    BatchServiceOptions service;
    service.directory = folder.path() + "/batches";
    service.files = options.files;
    service.worker.lines_max = options.lines_max;
    service.worker.sequences_max = 16;
    service.worker.retry_seconds = 0.05;
    service.worker.identity = "fake";
    service.api_keys = options.keys;
    service.unfinished_max = options.unfinished_max;
    batches = BatchService::open(std::move(service), *engine, api->context).value();
    Access access;
    access.api_keys = options.keys;
    Router router = make_router(*api, access);
    batches->add_routes(router);
    api->batches = [this](uint64_t key) { return batches->latest(key); };
    for (const Route& route : router.routes()) routes.insert(route.method + " " + route.path);
    HttpLimits limits;
    limits.upload_bytes_max = size_t{64} << 20;
    if (options.started) batches->start();
    http = HttpServer::start("127.0.0.1", port, limits, std::move(router)).value();
    port = http->port();
  }

  void stop() {
    if (http == nullptr) return;
    http->stop();
    batches->stop();
    http.reset();
    batches.reset();
    engine->drain(0);
    api.reset();
    engine.reset();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port); }

  Options options;
  TempDirectory folder;
  uint16_t port = 0;
  std::set<std::string> routes;
  Tokenizer tokenizer = byte_tokenizer();
  ChatTemplate chat = ChatTemplate::load({});
  std::unique_ptr<FakeScheduler> engine;
  std::unique_ptr<ApiService> api;
  std::unique_ptr<BatchService> batches;
  std::unique_ptr<HttpServer> http;
};

}  // namespace spillway::test
