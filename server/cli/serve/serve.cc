#include "server/cli/serve/serve.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "offload/model_source.h"
#include "server/api/seed_stream.h"
#include "server/api/service.h"
#include "server/batches/batch_service.h"
#include "server/batches/batch_unavailable.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/common/stage_command.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/serve/api_keys.h"
#include "server/cli/serve/http_flags.h"
#include "server/cli/serve/log_flags.h"
#include "server/http/request_log.h"
#include "server/http/server.h"
#include "server/log.h"
#include "server/web/pages.h"

namespace spillway {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kHealthInterval{1};

ApiContext make_context(const ServeFlags& flags, const ServedModel& model, int64_t slots_max) {
  ApiContext context = model.context;
  if (!flags.served_model_names.empty()) context.model_names = flags.served_model_names;
  context.limits.strict_params = flags.strict_params;
  const bool overtakes =
      flags.priority == "on" || (flags.priority == "auto" && flags.api_keys.size() <= 1);
  if (!overtakes) context.limits.priority_min = 0;
  context.seeds = std::make_shared<SeedStream>(flags.seed);
  context.limits.sequences_max = std::min(context.limits.sequences_max, slots_max);
  return context;
}

void print_urls(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) std::printf("Listening on %s\n", url.c_str());
  std::fflush(stdout);
}

// Under nohup the server is meant to outlive the terminal.
bool started_by_nohup() {
  struct sigaction present {};
  return sigaction(SIGHUP, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

// Finishes running requests on a thread of its own, so that the caller receives the second signal.
class Drain {
 public:
  Drain(ApiService& api, HttpServer& server, BatchService* batches, double seconds,
        asio::io_context& signals)
      : thread_([&api, &server, batches, seconds, &signals] {
          api.draining = true;
          server.begin_drain();
          if (batches != nullptr) batches->stop();
          api.scheduler.drain(seconds);
          // The sequences are done; their last bytes may still be on the way to slow clients.
          server.wait_quiet(5);
          signals.stop();
        }) {}
  ~Drain() { thread_.join(); }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  std::thread thread_;
};

// The workload for the plan search before any request has come: full blocks of a page of context
// and some paragraphs of answer. Sequences of any length run all the same.
const RequestGroup kTypicalRequests = {.prompt_tokens = 512, .new_tokens = 128, .count = 0};

struct State {
  std::string model;
  std::string api_key_file;
  ServeFlags serve;
  LogFlags log;
  EngineFlags engine;
  int64_t body_bytes_max = static_cast<int64_t>(RequestMemory().body_bytes_max);
  int64_t answers_bytes_max = 0;
};

void add_serve_flags(Settings& settings, State* state) {
  ServeFlags& flags = state->serve;
  settings.group("Server");
  add_listen_flags(settings, &flags);
  settings.add_texts("served-model-name", &flags.served_model_names, "NAME",
                     "names that requests may use; the first is the one in answers");
  settings.add(api_key_setting(&flags.api_keys));
  settings.add_text("api-key-file", &state->api_key_file, "FILE",
                    "a file with more keys, one a line, with limits of its own behind it, such as "
                    "'KEY slots=8'; '#' begins a comment");
  settings.add_integer(
      "queue-max", &flags.queue_max, 0, 1'000'000,
      "sequences running and waiting before 429, the last eighth of them for clients "
      "that have less than that; 0: what the scheduler takes");
  settings.add_integer("request-seconds-max", &flags.request_seconds_max, 0, 31'536'000,
                       "longest time of one request; 0: no bound");
  settings.add_integer("stall-seconds", &flags.stall_seconds, 0, 31'536'000,
                       "/health answers 503 when there is work and no sweep has ended for so long; "
                       "0: never");
  settings.add_real("sse-ping-interval", &flags.ping_seconds, 0, 86'400,
                    "seconds of silence before a stream is pinged; 0: never");
  settings.add_real("drain-seconds", &flags.drain_seconds, 0, 86'400,
                    "time for running requests after SIGTERM or Ctrl-C");
  settings.add_integer("body-bytes-max", &state->body_bytes_max, 1024, int64_t{1} << 30,
                       "largest request body; what several of these take is kept free of "
                       "--host-memory");
  settings.add_integer("answers-bytes-max", &state->answers_bytes_max, 0, int64_t{1} << 40,
                       "memory of --host-memory for prompts and answers of all requests together; "
                       "0: a 16th of it, 48 MiB to 1 GiB");
  settings.add_choice("priority", &flags.priority, {"auto", "on", "off"},
                      "whether a request's 'priority' below 0 may go before others; auto: unless "
                      "there are several API keys");
  settings.add_text("batch-dir", &flags.batch_dir, "DIR",
                    "where files and batches of clients lie (/v1/files, /v1/batches); default: "
                    "'batches' in the cache folder; off: there are none");
  settings.add_integer("file-bytes-max", &flags.file_bytes_max, 1024, int64_t{1} << 40,
                       "largest file of a client");
  settings.add_integer("files-bytes-max", &flags.files_bytes_max, 1024, int64_t{1} << 50,
                       "all files of one client together");
  settings.add_integer("batch-lines-max", &flags.batch_lines_max, 1, int64_t{1} << 40,
                       "lines of one batch");
  settings.add_integer("batches-max", &flags.batches_max, 1, 1'000'000,
                       "batches of one client that have not ended");
  settings.add_switch("strict-params", &flags.strict_params,
                      "refuse unknown request fields instead of ignoring them");
  add_http_flags(settings, &flags.http);
  add_log_flags(settings, &state->log);
}

Status read_api_keys(State* state) {
  if (state->api_key_file.empty()) return {};
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<ApiKey> keys, read_api_key_file(state->api_key_file));
  ServeFlags& flags = state->serve;
  flags.key_limits.resize(flags.api_keys.size());  // Keys of other sources have none.
  for (const ApiKey& key : keys) {
    flags.api_keys.push_back(key.key);
    flags.key_limits.push_back(key.limits);
  }
  return {};
}

// The service of files and batches, and the share of the queue and of the memory for answers that
// it takes; null: there are none.
Result<std::unique_ptr<BatchService>> open_batches(const ServeFlags& flags,
                                                   const ServedModel& model,
                                                   const ApiContext& context,
                                                   int64_t sequences_max) {
  if (flags.batch_dir.empty()) return std::unique_ptr<BatchService>();
  BatchServiceOptions options;
  options.directory = flags.batch_dir;
  options.files.file_bytes_max = flags.file_bytes_max;
  options.files.owner_bytes_max = flags.files_bytes_max;
  options.api_keys = flags.api_keys;
  options.unfinished_max = flags.batches_max;
  options.worker.lines_max = flags.batch_lines_max;
  options.worker.sequences_max = sequences_max;
  options.worker.answers_bytes_max = flags.answers_bytes_max / 4;
  options.worker.seed = flags.seed;
  options.worker.identity = model.identity;
  auto opened = BatchService::open(std::move(options), *model.scheduler, context);
  if (opened.ok() || flags.batch_dir_chosen || opened.status().code() != Code::kCapacity) {
    return opened;
  }
  log_warning("No files and batches over HTTP: " + std::string(opened.status().message()) +
              "; another server uses them. --batch-dir names another place.");
  return std::unique_ptr<BatchService>();
}

// The default place, unless one was chosen; "off" is none.
Status place_batches(ServeFlags* flags) {
  flags->batch_dir_chosen = !flags->batch_dir.empty();
  if (flags->batch_dir == "off") {
    flags->batch_dir.clear();
  } else if (flags->batch_dir.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string cache, default_cache_directory());
    flags->batch_dir = cache + "/batches";
  }
  return {};
}

void warn_of_open_doors(const ServeFlags& flags, const std::vector<HttpListener>& listeners) {
  for (const HttpListener& listener : listeners) {
    if (!flags.api_keys.empty() || listener.loopback()) continue;
    log_warning(listener.url() +
                " can be reached from other machines and asks for no API key: whoever reaches it "
                "may use it. Set SPILLWAY_API_KEY or --api-key-file");
  }
}

// Logs the throughput, with the prediction for full blocks.
void log_throughput(const SchedulerStats& stats, std::optional<double> predicted) {
  if (stats.generated_tokens == 0 || stats.busy_seconds <= 0) return;
  const auto tokens = static_cast<double>(stats.generated_tokens);
  std::string line = "Generated " + std::to_string(stats.generated_tokens) + " tokens in " +
                     format_seconds(stats.busy_seconds) +
                     " of work: " + format_rate(tokens / stats.busy_seconds) + " tokens/s";
  if (predicted) {
    line += " (full blocks were predicted to reach " + format_rate(*predicted) + ")";
  }
  log_info(line);
}

}  // namespace

Status validate(const ServeFlags& flags) {
  for (const std::string& name : flags.served_model_names) {
    if (name.empty()) return invalid_argument("--served-model-name: a name is empty");
  }
  return validate(static_cast<const ListenFlags&>(flags));
}

std::string start_line(const ServeFlags& flags, const ApiContext& context, int64_t slots_max) {
  std::string names;
  for (const std::string& name : context.model_names) names += (names.empty() ? "" : ", ") + name;
  const size_t keys = flags.api_keys.size();
  const std::string asked = keys == 0   ? "asks for no API key"
                            : keys == 1 ? "asks for the API key"
                                        : "asks for one of " + std::to_string(keys) + " API keys";
  return "Serving " + names + " (" + std::to_string(context.shape->positions) + " positions); " +
         asked + "; at most " + std::to_string(slots_max) + " sequences running and waiting, " +
         format_bytes(flags.http.body_bytes_max) + " a request, " +
         std::to_string(flags.http.connections_per_peer_max) + " connections a client";
}

Result<LoadingServer> LoadingServer::start(const ServeFlags& flags,
                                           std::vector<HttpListener> listeners) {
  Access access{flags.api_keys, flags.allowed_origins, /*known_names_only=*/true,
                flags.host,     flags.allowed_hosts,   flags.key_limits};
  auto counts = std::make_shared<HttpCounts>();
  const auto observe = [counts](const RequestReport& report) {
    counts->count(report);
    log_request(report);
  };
  SPILLWAY_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> server,
      HttpServer::start(std::move(listeners), flags.http, make_loading_router(access), observe));
  return LoadingServer{std::move(server), std::move(access), std::move(counts)};
}

Status run_serve(const ServeFlags& flags, HttpListener listener, const ServedModel& model,
                 std::function<void(std::string_view)> announce) {
  std::vector<HttpListener> listeners;
  listeners.push_back(std::move(listener));
  SPILLWAY_ASSIGN_OR_RETURN(LoadingServer server,
                            LoadingServer::start(flags, std::move(listeners)));
  return run_serve(flags, std::move(server), model, std::move(announce));
}

Status run_serve(const ServeFlags& flags, LoadingServer loading, const ServedModel& model,
                 std::function<void(std::string_view)> announce) {
  SPILLWAY_CHECK(model.scheduler != nullptr);
  const int64_t queue_max = model.scheduler->queue_max();
  // Lines of batches wait in a part of the queue of their own, and so refuse nobody.
  const bool batches_wanted = !flags.batch_dir.empty();
  const int64_t for_batches = batches_wanted ? std::max<int64_t>(1, queue_max / 4) : 0;
  const int64_t for_clients = std::max<int64_t>(1, queue_max - for_batches);
  const int64_t slots_max =
      flags.queue_max > 0 ? std::min(flags.queue_max, for_clients) : for_clients;
  ApiService api(*model.scheduler, make_context(flags, model, slots_max), slots_max,
                 flags.answers_bytes_max - (batches_wanted ? flags.answers_bytes_max / 4 : 0));
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<BatchService> batches,
                            open_batches(flags, model, api.context, for_batches));
  api.limit_keys(flags.key_limits);
  api.plan = {model.tier_bytes, model.predicted_tokens_per_second};
  api.request_seconds_max = flags.request_seconds_max;
  api.stall_seconds = flags.stall_seconds;
  api.ping_seconds = flags.ping_seconds;
  api.http_counts = loading.counts;

  // Before the first request, so that no signal is lost.
  asio::io_context io{1};
  asio::signal_set signals(io, SIGINT, SIGTERM);
  if (!started_by_nohup()) signals.add(SIGHUP);
  // Declared after `api`, which the routes use.
  const std::unique_ptr<HttpServer> server = std::move(loading.server);
  api.plan_text = model.plan;
  api.timeline = model.timeline;
  Router router = make_router(api, loading.access);
  add_page_routes(router);
  HttpLimits limits = flags.http;
  if (batches != nullptr) {
    batches->add_routes(router);
    api.batches = [&batches](uint64_t key) { return batches->latest(key); };
    api.batch_figures = [&batches] { return batches->figures(); };
    // Beside the file a form has heads and fields.
    limits.upload_bytes_max = static_cast<size_t>(flags.file_bytes_max) + (size_t{1} << 20);
    batches->start();
  } else if (batches_wanted) {
    add_unavailable_batch_routes(router);
  }
  server->serve(limits, std::move(router));
  log_info(start_line(flags, api.context, slots_max));
  announce ? announce(server->url()) : print_urls(server->urls());

  std::optional<Drain> drain;
  const std::function<void()> await_signal = [&] {
    signals.async_wait([&](const boost::system::error_code& ec, int) {
      if (ec) return;
      if (!drain) {
        drain.emplace(api, *server, batches.get(), flags.drain_seconds, io);
        return await_signal();
      }
      server->stop();  // Its clients are gone now, so their sequences are cancelled.
      signals.clear();
    });
  };
  asio::steady_timer health(io);
  const std::function<void()> await_failure = [&] {
    health.expires_after(kHealthInterval);
    health.async_wait([&](const boost::system::error_code& ec) {
      if (ec || drain) return;
      if (model.scheduler->stats().healthy) return await_failure();
      drain.emplace(api, *server, batches.get(), flags.drain_seconds, io);
    });
  };
  await_signal();
  await_failure();
  io.run();
  drain.reset();
  server->stop();
  if (batches != nullptr) batches->stop();
  if (model.scheduler->stats().healthy) return {};
  return {Code::kDeviceLost,
          "the engine failed and cannot go on; the log says why. Start it again."};
}

Command serve_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "serve";
  command.summary = "answer completions over HTTP, OpenAI-compatible";
  command.description =
      "Loads the model and answers OpenAI's POST /v1/completions and /v1/chat/completions, also as "
      "streams; GET /openapi.json describes all routes, docs/HTTP_API.md explains them. "
      "Stops "
      "gracefully on SIGTERM or Ctrl-C.";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  add_serve_flags(command.settings, state.get());
  add_engine_flags(command.settings, &state->engine);
  command.check_given = [state](const Settings& given) { return settle(given, &state->serve); };
  command.check = [state]() -> Status {
    apply(state->log);
    SPILLWAY_RETURN_IF_ERROR(validate(state->serve));
    SPILLWAY_RETURN_IF_ERROR(read_api_keys(state.get()));
    SPILLWAY_RETURN_IF_ERROR(place_batches(&state->serve));
    return validate(state->engine);
  };
  command.run = [state, open] {
    std::shared_ptr<StageRank> rank;
    if (const auto done = start_stages("serve", state->model, state->engine, &rank)) return *done;
    state->serve.seed = state->engine.seed;
    HttpLimits& limits = state->serve.http;
    raise_connections_max(&limits);
    // Loading a model may take minutes, so check first what does not need it.
    Result<std::vector<HttpListener>> listeners = open_listeners(state->serve);
    if (!listeners.ok()) return report("serve", listeners.status());
    warn_of_open_doors(state->serve, listeners.value());
    const RequestMemory wanted = {static_cast<uint64_t>(state->body_bytes_max),
                                  static_cast<uint64_t>(state->answers_bytes_max)};
    Result<LoadingServer> server = LoadingServer::start(state->serve, std::move(listeners).value());
    if (!server.ok()) return report("serve", server.status());
    log_info(server->server->url() + " answers 503 (model_loading) until the model is there.");
    std::optional<InterruptGuard> loading;
    loading.emplace("spillway serve: stopped while the model was loaded; nothing was served.\n",
                    InterruptGuard::First::kEnds, state->serve.socket);
    Result<ServedModel> model = as_input(open(state->model, state->engine,
                                              {.tokenizer_only = false,
                                               .timeline = true,
                                               .workload = {kTypicalRequests},
                                               .requests = wanted,
                                               .accepts_source = {},
                                               .stages = rank}));
    loading.reset();  // From here on run_serve handles signals.
    if (!model.ok()) return report("serve", model.status());
    log_info("plan (a file for --plan): " + model->plan);
    limits.body_bytes_max = model->requests.body_bytes_max;
    limits.bodies_bytes_max = model->requests.bodies_bytes_max();
    state->serve.answers_bytes_max = model->requests.answers_bytes_max;
    const Status served = run_serve(state->serve, std::move(server).value(), model.value());
    log_throughput(model->scheduler->stats(), model->predicted_tokens_per_second);
    return report("serve", served);
  };
  return command;
}

}  // namespace spillway
