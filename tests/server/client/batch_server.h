// A server with files and batches over a fake scheduler, for the tests of its clients. stop() and
// begin() as a process that ends and starts again at the same port.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/batches/batch_service.h"
#include "tests/server/api/api_support.h"
#include "tests/support/temp_directory.h"

namespace spillway {

class BatchServer {
 public:
  struct Options {
    FakeScheduler::Options engine;
    FileLimits files;
    std::vector<std::string> keys;
  };

  BatchServer() : BatchServer(Options()) {}
  explicit BatchServer(Options options) : options_(std::move(options)) { begin(); }
  ~BatchServer() { stop(); }

  void begin() {
    engine = std::make_unique<FakeScheduler>(options_.engine);
    api_ = std::make_unique<ApiService>(*engine, fake_context(engine->shape(), &tokenizer_), 32);
    BatchServiceOptions service;
    service.directory = folder_.path() + "/batches";
    service.files = options_.files;
    service.worker.lines_max = 10'000;
    service.worker.sequences_max = 16;
    service.worker.retry_seconds = 0.05;
    service.worker.identity = "fake";
    service.api_keys = options_.keys;
    batches_ = BatchService::open(std::move(service), *engine, api_->context).value();
    Access access;
    access.api_keys = options_.keys;
    Router router = make_router(*api_, access);
    batches_->add_routes(router);
    HttpLimits limits;
    limits.upload_bytes_max = size_t{64} << 20;
    batches_->start();
    http_ = HttpServer::start("127.0.0.1", port_, limits, std::move(router)).value();
    port_ = http_->port();
  }

  void stop() {
    if (http_ == nullptr) return;
    http_->stop();
    batches_->stop();
    http_.reset();
    batches_.reset();
    engine->drain(0);
    api_.reset();
    engine.reset();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  std::unique_ptr<FakeScheduler> engine;

 private:
  const Options options_;
  TempDirectory folder_;
  uint16_t port_ = 0;
  Tokenizer tokenizer_ = byte_tokenizer();
  std::unique_ptr<ApiService> api_;
  std::unique_ptr<BatchService> batches_;
  std::unique_ptr<HttpServer> http_;
};

// A line of OpenAI's Batch API, with its end.
inline std::string batch_line(const std::string& id, const Json& body,
                              const std::string& url = "/v1/completions") {
  return Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

}  // namespace spillway
