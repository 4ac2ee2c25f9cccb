// What the server's tests share: a fake model with a tokenizer of one token a byte, and a server on
// it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/service.h"
#include "server/chat/chat_template.h"
#include "server/http/server.h"
#include "tests/server/tokenizer/tokenizer_support.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/http_client.h"

namespace spillway {

using Json = nlohmann::json;

// Byte b is token b + 1; </s> is 0.
inline Tokenizer byte_tokenizer() {
  return load_small({});
}

inline std::vector<int32_t> byte_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 1);
  return ids;
}

// Sequences that generate `text` over and over.
inline FakeScheduler::Options say(std::string text) {
  FakeScheduler::Options options;
  options.token = [ids = byte_ids(text)](const Request&, int64_t t) {
    return ids[static_cast<size_t>(t) % ids.size()];
  };
  return options;
}

// What fake_token makes of a text prompt, as text.
inline std::string fake_text(std::string_view prompt, int64_t tokens) {
  Request request;
  request.sampling.temperature = 0;
  request.prompt = byte_ids(prompt);
  request.prompt.insert(request.prompt.begin(), 0);
  std::string text;
  for (int64_t t = 0; t < tokens; ++t) text += static_cast<char>(fake_token(request, t) - 1);
  return text;
}

inline ApiContext fake_context(const ModelShape& shape, const Tokenizer* tokenizer) {
  ApiContext context;
  context.shape = &shape;
  context.tokenizer = tokenizer;
  context.model_names = {"fake-model", "alias"};
  context.created = 1'700'000'000;
  context.fingerprint = "spillway-test";
  return context;
}

struct TestServer {
  struct Options {
    FakeScheduler::Options engine;
    HttpLimits http;
    int64_t slots_max = 0;  // 0: the engine's queue_max
    int64_t request_seconds_max = 0;
    uint64_t answers_bytes_max = uint64_t{1} << 30;
    double ping_seconds = 15;
    bool with_tokenizer = true;
    bool strict_params = false;
    std::vector<std::string> model_names;  // None: the fake's
    Access access;
    std::vector<Route> routes;      // Besides the API's
    RequestObserver observer = {};  // Hears of requests that are over; they are counted in any case
  };

  TestServer() : TestServer(Options()) {}
  explicit TestServer(Options options)
      : engine(options.engine),
        api(engine, context(options),
            options.slots_max > 0 ? options.slots_max : engine.queue_max(),
            options.answers_bytes_max) {
    api.limit_keys(options.access.key_limits);
    api.request_seconds_max = options.request_seconds_max;
    api.ping_seconds = options.ping_seconds;
    auto counts = std::make_shared<HttpCounts>();
    api.http_counts = counts;
    const auto observe = [counts, observer = options.observer](const RequestReport& report) {
      counts->count(report);
      if (observer) observer(report);
    };
    Router router = make_router(api, options.access);
    for (Route& route : options.routes) router.add(std::move(route));
    server = HttpServer::start("127.0.0.1", 0, options.http, std::move(router), observe).value();
  }

  ~TestServer() {
    server->stop();
    engine.drain(0);
  }

  ApiContext context(const Options& options) {
    ApiContext made = fake_context(engine.shape(), options.with_tokenizer ? &tokenizer : nullptr);
    made.limits.strict_params = options.strict_params;
    if (!options.model_names.empty()) made.model_names = options.model_names;
    if (options.with_tokenizer) made.chat = &chat;
    return made;
  }

  HttpAnswer post(const std::string& path, const Json& body) {
    return HttpClient(server->port()).post(path, body.dump());
  }

  Tokenizer tokenizer = byte_tokenizer();
  ChatTemplate chat = ChatTemplate::load({});  // The plain one
  FakeScheduler engine;
  ApiService api;
  std::unique_ptr<HttpServer> server;
};

}  // namespace spillway
