// GET endpoints about the server: models, health, load, version, and
// the description of the API.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api/health.h"
#include "server/api/openapi.h"
#include "server/api/service.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

HttpResponse json_response(const Json& json) {
  HttpResponse response;
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

Json model_json(const ApiContext& context, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", context.created},
          {"owned_by", "spillway"},
          {"root", context.model_names.front()},
          {"parent", nullptr},
          {"max_model_len", context.shape->positions},
          {"permission", Json::array()}};
}

}  // namespace

void handle_models(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  Json models = Json::array();
  for (const std::string& name : api.context.model_names) {
    models.push_back(model_json(api.context, name));
  }
  exchange->respond(json_response({{"object", "list"}, {"data", std::move(models)}}));
}

void handle_model(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  const auto& names = api.context.model_names;
  const std::string& name = request.parameters.front();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return exchange->respond(error_response(model_not_found(names)));
  }
  exchange->respond(json_response(model_json(api.context, name)));
}

void handle_health(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  if (api.draining) return exchange->respond(error_response(shutting_down()));
  const SchedulerStats stats = api.scheduler.stats();
  if (const auto trouble = engine_trouble(stats, api.stall_seconds)) {
    return exchange->respond(error_response(*trouble));
  }
  Json health = {{"status", "ok"}};
  if (std::string doubt = engine_doubt(stats); !doubt.empty()) health["reason"] = std::move(doubt);
  exchange->respond(json_response(health));
}

// vLLM's: the requests that are being answered. A call of several sequences counts them all.
void handle_load(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"server_load", api.admission.held()}}));
}

// Tens of kilobytes of JSON, so it is not built on the network thread.
void handle_openapi(ApiService& api, HttpRequest request, const ExchangePtr& exchange) {
  exchange->post_work([&api, exchange, key = request.api_key] {
    const ApiContext& context = api.context_of(key);
    exchange->respond(json_response(openapi_document(context, static_cast<bool>(api.batches))));
  });
}

void handle_version(ApiService&, HttpRequest, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"version", SPILLWAY_VERSION}}));
}

}  // namespace spillway
