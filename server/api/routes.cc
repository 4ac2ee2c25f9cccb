#include "kernels/base/clock.h"
#include "server/api/service.h"

namespace spillway {
namespace {

using ApiHandler = void (*)(ApiService&, HttpRequest, const ExchangePtr&);

struct ApiRoute {
  const char* method;
  const char* path;
  ApiHandler handler;
  bool json_body = false;
  bool open = false;   // Without a key, and while draining
  bool state = false;  // Says only how the program is
};

constexpr ApiRoute kRoutes[] = {
    {"POST", "/v1/completions", handle_completions, true},
    {"POST", "/v1/chat/completions", handle_chat_completions, true},
    {"GET", "/v1/models", handle_models},
    {"GET", "/v1/models/{*}", handle_model},
    {"POST", "/tokenize", handle_tokenize, true},
    {"POST", "/detokenize", handle_detokenize, true},
    {"GET", "/tokenizer_info", handle_tokenizer_info},
    {"GET", "/load", handle_load},
    {"GET", "/version", handle_version, false, false, true},
    {"GET", "/api/events", handle_events},
    {"GET", "/openapi.json", handle_openapi},
    {"GET", "/metrics", handle_metrics, false, false, true},
    {"GET", "/health", handle_health, false, true, true},
};

}  // namespace

void ApiService::limit_keys(const std::vector<KeyLimits>& of_keys) {
  quotas = KeyQuotas(of_keys);
  for (const KeyLimits& key : of_keys) {
    ApiLimits& limits = key_contexts.emplace_back(context).limits;
    if (key.priority_min || key.priority_max) {
      limits.priority_min = key.priority_min.value_or(INT32_MIN);
      limits.priority_max = key.priority_max.value_or(INT32_MAX);
    }
  }
}

namespace {

Router router_of(ApiService& api, Access access, bool state_alone) {
  Router router(std::move(access));
  for (const ApiRoute& route : kRoutes) {
    if (state_alone && !route.state) continue;
    router.add({route.method, route.path,
                [&api, handler = route.handler](HttpRequest request, const ExchangePtr& exchange) {
                  handler(api, std::move(request), exchange);
                },
                route.json_body, route.open});
  }
  return router;
}

}  // namespace

Router make_router(ApiService& api, Access access) {
  return router_of(api, std::move(access), /*state_alone=*/false);
}

Router make_state_router(ApiService& api, Access access) {
  return router_of(api, std::move(access), /*state_alone=*/true);
}

Router make_loading_router(Access access) {
  Router router(std::move(access));
  const auto loading = [began = steady_seconds()] {
    return error_response(model_loading(steady_seconds() - began));
  };
  const Handler handler = [loading](const HttpRequest&, const ExchangePtr& exchange) {
    exchange->respond(loading());
  };
  for (const ApiRoute& route : kRoutes) {
    router.add({route.method, route.path, handler, route.json_body, route.open});
  }
  router.add({"GET", "/", handler, /*json_body=*/false, /*open=*/true});  // The page's
  router.answer_other_paths(loading);  // Files, batches, and what else will be there
  return router;
}

}  // namespace spillway
