// The OpenAI-style API over one scheduler: the state that all handlers share, and the one table of
// routes. Owned by `serve`; outlives the HTTP server and every answer. Handlers run on the network
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/timeline.h"
#include "scheduler/scheduler.h"
#include "server/api/admission.h"
#include "server/api/answer_memory.h"
#include "server/api/completion.h"
#include "server/api/events.h"
#include "server/api/key_quotas.h"
#include "server/api/metrics.h"
#include "server/http/router.h"

namespace spillway {

struct ApiService {
  ApiService(Scheduler& given, ApiContext given_context, int64_t slots_max,
             uint64_t answers_bytes_max = uint64_t{1} << 30)
      : scheduler(given),
        context(std::move(given_context)),
        admission(slots_max),
        answers(answers_bytes_max) {}

  // What each API key may, by its number from 1, where it is less or more than others may. Before
  // the server starts.
  void limit_keys(const std::vector<KeyLimits>& of_keys);
  // The context with the limits of a key's requests.
  const ApiContext& context_of(uint64_t api_key) const {
    return api_key == 0 || api_key > key_contexts.size() ? context : key_contexts[api_key - 1];
  }

  Scheduler& scheduler;
  const ApiContext context;
  std::vector<ApiContext> key_contexts;  // By a key's number - 1
  Admission admission;
  KeyQuotas quotas;
  AnswerMemory answers;
  EventWatchers watchers;
  PlanFigures plan;  // Set before the server starts
  std::atomic<bool> draining{false};
  int64_t request_seconds_max = 0;  // 0: no bound
  int64_t stall_seconds = 0;        // Time without a sweep's end that counts as stalled; 0: never
  // All set before the server starts.
  std::string plan_text;         // The plan in force, as --plan reads it
  Timeline* timeline = nullptr;  // What was busy when; null: that is not known
  // The latest batches of an API key's number, a JSON list; empty: there are no files and batches.
  std::function<std::string(uint64_t api_key)> batches;
  std::function<BatchFigures()> batch_figures;    // For the metrics, without waiting; empty: none
  std::shared_ptr<const HttpCounts> http_counts;  // Likewise; null: nobody counts
  double ping_seconds = 15;                       // Silence in a stream before a ping; 0: no pings
};

// Every route the server has; a new endpoint is one line in routes.cc and one handler.
Router make_router(ApiService& api, Access access);

// Only those that say how the program is: /health, /metrics, /version.
Router make_state_router(ApiService& api, Access access);

// Before there is a model: every path is answered 503 with model_loading, those of the table by
// their methods and bodies.
Router make_loading_router(Access access);

// The handlers, one file a subject.
void handle_completions(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_chat_completions(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_models(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_model(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_health(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_version(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_openapi(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_metrics(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_load(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_events(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_tokenizer_info(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_tokenize(ApiService& api, HttpRequest request, const ExchangePtr& exchange);
void handle_detokenize(ApiService& api, HttpRequest request, const ExchangePtr& exchange);

}  // namespace spillway
