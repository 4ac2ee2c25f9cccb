#include "server/api/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>

#include "server/api/health.h"
#include "server/api/service.h"
#include "server/tokenizer/utf8.h"

namespace spillway {
namespace {

using prometheus::MetricType;
using Labels = std::vector<prometheus::ClientMetric::Label>;

// The families of one scrape, each name with its help text and samples.
class Families {
 public:
  // `labels`: put before every sample's own labels.
  explicit Families(Labels labels) : labels_(std::move(labels)) {}

  void gauge(const char* name, const char* help) { add(name, help, MetricType::Gauge); }
  void gauge(const char* name, const char* help, double value) {
    gauge(name, help);
    sample(value);
  }
  // `name` ends with _total; the value only grows.
  void counter(const char* name, const char* help) { add(name, help, MetricType::Counter); }
  void counter(const char* name, const char* help, double value) {
    counter(name, help);
    sample(value);
  }
  void histogram(const char* name, const char* help, const Histogram& values) {
    add(name, help, MetricType::Histogram);
    prometheus::ClientMetric& metric = all_.back().metric.emplace_back();
    metric.label = labels_;
    metric.histogram.sample_count = values.count();
    metric.histogram.sample_sum = values.sum();
    uint64_t count = 0;
    for (size_t i = 0; i < values.bounds().size(); ++i) {
      count += values.count(i);
      metric.histogram.bucket.push_back({count, values.bounds()[i]});
    }
  }
  // Adds a sample to the last added family, a gauge or counter.
  void sample(double value, const Labels& own = {}) {
    prometheus::MetricFamily& family = all_.back();
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = labels_;
    metric.label.insert(metric.label.end(), own.begin(), own.end());
    (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }

  std::vector<prometheus::MetricFamily> take() { return std::move(all_); }

 private:
  void add(const char* name, const char* help, MetricType type) {
    all_.push_back({name, help, type, {}});
  }

  const Labels labels_;
  std::vector<prometheus::MetricFamily> all_;
};

template <class T>
double number(T value) {
  return static_cast<double>(value);
}

// Uses vLLM's metric names; a request of several choices or prompts counts as that many.
void add_requests(Families& to, const SchedulerStats& stats) {
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
void add_times(Families& to, const SequenceTimes& times) {
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
void add_lengths(Families& to, const SequenceTimes& lengths) {
  to.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", lengths.prompt_tokens);
  to.histogram("vllm:request_generation_tokens", "Tokens that a sequence generated.",
               lengths.generated_tokens);
  to.histogram("vllm:request_max_num_generation_tokens", "Tokens that it might have generated.",
               lengths.max_tokens);
}

void add_kv_rule(Families& to, const SchedulerStats& stats) {
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
             "Times that a sequence was set aside on disk to make room for older ones.",
             number(stats.set_aside));
  to.counter("vllm:prefix_cache_queries_total",
             "Prompt tokens of admitted sequences that were looked up in the prefix cache.",
             number(stats.prefix_queries));
  to.counter("vllm:prefix_cache_hits_total", "Of these, the ones that were there.",
             number(stats.prefix_hits));
  to.gauge("spillway_prefix_cache_bytes",
           "KV cache that holds beginnings of prompts, whether sequences use them now or not.",
           number(stats.prefix_bytes));
  to.gauge("spillway_kv_reserved_bytes", "KV cache reserved for the sequences in the block.",
           number(stats.kv_bytes_used));
  to.gauge("spillway_kv_capacity_bytes", "KV cache on all tiers together.",
           number(stats.kv_bytes_total));
}

void add_engine(Families& to, const SchedulerStats& stats, bool healthy, const PlanFigures& plan) {
  to.counter("spillway_sweeps_total", "Passes of the block over all layers.", number(stats.sweeps));
  to.counter("spillway_busy_seconds_total",
             "Seconds inside sweeps; generated tokens over these are the engine's pace.",
             stats.busy_seconds);
  to.counter("spillway_sweeps_failed_total", "Of these, the ones that ended with an error.",
             number(stats.sweeps_failed));
  to.gauge("spillway_prefill_target_tokens",
           "Prompt tokens that a sweep aims at while requests wait; 0: as many as fit.",
           number(stats.prefill_target));
  to.gauge(
      "spillway_engine_healthy",
      "0 while /health answers 503 for the engine: it is lost, no sweep ends, or the last ones "
      "failed. Else 1.",
      healthy ? 1 : 0);
  if (plan.predicted_tokens_per_second) {
    to.gauge("spillway_policy_predicted_tokens_per_second",
             "Generated tokens a second that the cost model expects of full blocks.",
             *plan.predicted_tokens_per_second);
  }
  if (plan.tier_bytes.empty()) return;
  to.gauge("spillway_tier_bytes",
           "Bytes that the plan gives to each kind on each tier; on a machine without an "
           "accelerator the device tier is host memory, too.");
  for (const TierAmount& amount : plan.tier_bytes) {
    to.sample(number(amount.bytes), {{"tier", amount.tier}, {"kind", amount.kind}});
  }
}

void add_process(Families& to, const ProcessStats& process) {
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
                         const PlanFigures& plan, const std::optional<ProcessStats>& process) {
  // One name that is not UTF-8 would make a scraper refuse the whole text.
  Families model({{"model_name", to_utf8(model_name)}, {"engine", "0"}});
  add_requests(model, stats);
  add_times(model, stats.times);
  model.histogram("vllm:inter_token_latency_seconds",
                  "From a token of a running sequence to its next one.", stats.token_gaps);
  add_lengths(model, stats.times);
  add_kv_rule(model, stats);
  add_engine(model, stats, healthy, plan);
  Families server(Labels{});
  server.gauge("spillway_build_info", "1, labelled with what runs.");
  server.sample(1, {{"version", SPILLWAY_VERSION}});
  if (process) add_process(server, *process);
  const prometheus::TextSerializer serializer;
  return serializer.Serialize(model.take()) + serializer.Serialize(server.take());
}

void handle_metrics(ApiService& api, HttpRequest, const ExchangePtr& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const SchedulerStats stats = api.scheduler.stats();
  response.body =
      metrics_text(api.context.model_names.front(), stats,
                   !engine_trouble(stats, api.stall_seconds), api.plan, process_stats());
  exchange->respond(std::move(response));
}

}  // namespace spillway
