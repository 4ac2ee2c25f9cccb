#include "server/api/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>

#include "server/api/health.h"
#include "server/api/service.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

template <class T>
double number(T value) {
  return static_cast<double>(value);
}

// Uses vLLM's metric names; a request of several choices or prompts counts as that many.
void add_requests(MetricFamilies& to, const SchedulerStats& stats) {
  to.gauge("vllm:num_requests_running", "Sequences in the block.", number(stats.running));
  to.gauge("vllm:num_requests_waiting", "Sequences accepted and not yet admitted to the block.",
           number(stats.waiting));
  to.gauge(
      "vllm:kv_cache_usage_perc",
      "Share of the KV cache, on all tiers together, that is reserved: 0 to 1.",
      stats.kv_bytes_total > 0 ? number(stats.kv_bytes_used) / number(stats.kv_bytes_total) : 0);
  to.counter("vllm:prompt_tokens_total", "Prompt tokens prefilled, those found cached included.",
             number(stats.prompt_tokens + stats.prefix_hits));
  to.counter("vllm:prompt_tokens_cached_total",
             "Prompt tokens that were not computed, since the cache had the beginning of their "
             "prompt.",
             number(stats.prefix_hits));
  to.counter("vllm:generation_tokens_total", "Tokens generated.", number(stats.generated_tokens));
  to.counter("vllm:request_success_total",
             "Sequences that have ended: by a stop (token or string), by length, aborted (client "
             "gone, timeout, shutdown) or by an error.");
  constexpr std::pair<FinishReason, const char*> kReasons[] = {{FinishReason::kStop, "stop"},
                                                               {FinishReason::kLength, "length"},
                                                               {FinishReason::kCancelled, "abort"},
                                                               {FinishReason::kError, "error"}};
  static_assert(std::size(kReasons) == kFinishReasons);
  for (const auto& [reason, name] : kReasons) {
    to.sample(number(stats.ended[static_cast<size_t>(reason)]), {{"finished_reason", name}});
  }
}

// Times of sequences that ended by a stop or by length.
void add_times(MetricFamilies& to, const SequenceTimes& times) {
  to.histogram("vllm:time_to_first_token_seconds", "From a sequence's arrival to its first token.",
               times.first_token);
  to.histogram("vllm:e2e_request_latency_seconds", "From a sequence's arrival to its last token.",
               times.whole);
  to.histogram("vllm:request_queue_time_seconds", "From arrival to admission to the block.",
               times.queue);
  to.histogram("vllm:request_prefill_time_seconds", "From admission to the first token.",
               times.prefill);
  to.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
               times.decode);
  to.histogram("vllm:request_time_per_output_token_seconds",
               "From the first token to the last, by the tokens behind the first.",
               times.each_token);
}

// Lengths of sequences that ended by a stop or by length.
void add_lengths(MetricFamilies& to, const SequenceTimes& lengths) {
  to.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", lengths.prompt_tokens);
  to.histogram("vllm:request_generation_tokens", "Tokens that a sequence generated.",
               lengths.generated_tokens);
  to.histogram("vllm:request_max_num_generation_tokens", "Tokens that it might have generated.",
               lengths.max_tokens);
}

void add_kv_rule(MetricFamilies& to, const SchedulerStats& stats) {
  to.counter("spillway_kv_rows_kept_total",
             "Positions that sequences had in their KV cache when they ended; those under a KV "
             "rule and those of the full cache. Each head of each layer chooses its own.",
             number(stats.kv.rows_kept));
  to.counter("spillway_kv_rows_dropped_total",
             "Positions that KV rules had dropped from the caches of sequences when they ended.",
             number(stats.kv.rows_dropped));
  to.counter("spillway_kv_bytes_saved_total",
             "Bytes that the KV reservations of sequences that have ended were smaller than the "
             "full cache's, thanks to KV rules.",
             number(stats.kv.bytes_saved));
  to.counter("vllm:num_preemptions_total",
             "Times that a sequence was set aside on disk to make room for others.",
             number(stats.set_aside));
  to.counter("vllm:prefix_cache_queries_total",
             "Prompt tokens of admitted sequences that were looked up in the prefix cache.",
             number(stats.prefix_queries));
  to.counter("vllm:prefix_cache_hits_total", "Of these, the ones that were there.",
             number(stats.prefix_hits));
  to.counter("vllm:spec_decode_num_drafts_total",
             "Steps of sequences that had a draft of the next tokens behind them (--draft).",
             number(stats.drafts.drafts));
  to.counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
             number(stats.drafts.drafted));
  to.counter("vllm:spec_decode_num_accepted_tokens_total",
             "Of these, the ones that were the tokens sampled.", number(stats.drafts.accepted));
  to.gauge("spillway_prefix_cache_bytes",
           "KV cache that holds beginnings of prompts, whether sequences use them now or not.",
           number(stats.prefix_bytes));
  to.gauge("spillway_kv_reserved_bytes", "KV cache reserved for the sequences in the block.",
           number(stats.kv_bytes_used));
  to.gauge("spillway_kv_capacity_bytes", "KV cache on all tiers together.",
           number(stats.kv_bytes_total));
}

// Refusals that a server in trouble makes: there from the start, so that the first one is a growth.
constexpr const char* kUsualRefusals[] = {"queue_full", "answers_full", "too_many_connections",
                                          "shutting_down", "invalid_api_key"};

void add_http(MetricFamilies& to, HttpCounts::Totals http) {
  if (!http.requests.empty()) {
    to.counter("http_requests_total",
               "Requests that are over, by route, method and the answer's status; 499: the "
               "connection ended before anything was sent.");
    for (const auto& [kind, count] : http.requests) {
      to.sample(number(count), {{"handler", kind.handler},
                                {"method", kind.method},
                                {"status", std::to_string(kind.status)}});
    }
  }
  to.counter("spillway_requests_rejected_total",
             "Requests that were answered with an error before any work was done, by the error's "
             "code.");
  for (const char* reason : kUsualRefusals) http.refusals.try_emplace(reason, 0);
  for (const auto& [reason, count] : http.refusals) {
    to.sample(number(count), {{"reason", reason}});
  }
}

void add_batches(MetricFamilies& to, const BatchFigures& batches) {
  to.gauge("spillway_batches", "Batches of /v1/batches that the server knows, by state.");
  for (const auto& [state, count] : batches.batches) to.sample(number(count), {{"state", state}});
  to.gauge("spillway_batch_rows",
           "Lines of the batches that are in progress or being finished: pending (waiting or "
           "running), completed or failed.");
  to.sample(number(batches.rows_pending), {{"state", "pending"}});
  to.sample(number(batches.rows_completed), {{"state", "completed"}});
  to.sample(number(batches.rows_failed), {{"state", "failed"}});
}

void add_process(MetricFamilies& to, const ProcessStats& process) {
  to.gauge("process_start_time_seconds", "When the process began, in seconds since 1970.",
           process.start_seconds);
  to.counter("process_cpu_seconds_total", "CPU seconds of all threads, user and system.",
             process.cpu_seconds);
  to.gauge("process_resident_memory_bytes", "Host memory that is resident.",
           number(process.resident_bytes));
  to.gauge("process_virtual_memory_bytes", "Address space in use.", number(process.virtual_bytes));
  to.gauge("process_open_fds", "Open file descriptors.", number(process.open_files));
  to.gauge("process_max_fds", "Most file descriptors that may be open.",
           number(process.open_files_max));
}

}  // namespace

std::string metrics_text(std::string_view model_name, const SchedulerStats& stats, bool healthy,
                         const PlanFigures& plan, const ServerFigures& server) {
  // One name that is not UTF-8 would make a scraper refuse the whole text.
  MetricFamilies model({{"model_name", to_utf8(model_name)}, {"engine", "0"}});
  add_requests(model, stats);
  add_times(model, stats.times);
  model.histogram("vllm:inter_token_latency_seconds",
                  "From a token of a running sequence to its next one.", stats.token_gaps);
  add_lengths(model, stats.times);
  add_kv_rule(model, stats);
  add_engine_metrics(stats, healthy, plan, &model);
  MetricFamilies own(MetricFamilies::Labels{});
  own.gauge("spillway_build_info", "1, labelled with what runs.");
  own.sample(1, {{"version", SPILLWAY_VERSION}});
  if (server.http) add_http(own, *server.http);
  if (server.batches) add_batches(own, *server.batches);
  if (server.process) add_process(own, *server.process);
  const prometheus::TextSerializer serializer;
  return serializer.Serialize(model.take()) + serializer.Serialize(own.take());
}

void handle_metrics(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const SchedulerStats stats = api.scheduler.stats();
  ServerFigures server;
  if (api.http_counts != nullptr) server.http = api.http_counts->totals();
  if (api.batch_figures) server.batches = api.batch_figures();
  server.process = process_stats();
  response.body = metrics_text(api.context.model_names.front(), stats,
                               !engine_trouble(stats, api.stall_seconds), api.plan, server);
  exchange->respond(std::move(response));
}

}  // namespace spillway
