#include "server/cli/work/work.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "kernels/base/units.h"
#include "server/api/service.h"
#include "server/batches/batch_run.h"
#include "server/cli/batch/batch_identity.h"
#include "server/cli/batch/workload_sample.h"
#include "server/cli/common/console.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/flags/engine_settings.h"
#include "server/cli/queue/queue.h"
#include "server/cli/serve/serve.h"
#include "server/log.h"
#include "server/portable_identity.h"
#include "server/queue/queue_claims.h"
#include "server/queue/queue_jobs.h"
#include "server/queue/queue_rows.h"
#include "server/queue/queue_schema.h"

namespace spillway {
namespace {

constexpr double kShowSeconds = 10;
constexpr double kQuerySeconds = 15;  // After these the database counts as away.

std::string default_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return std::string(host.data()) + "-" + std::to_string(::getpid());
}

int64_t random_id() {
  std::random_device random;
  const uint64_t bits = uint64_t{random()} << 32 | random();
  return static_cast<int64_t>(bits >> 1 | 1);
}

// Connects, however long the database is away: workers may be started before it.
Result<PgConnection> connect(const WorkFlags& flags) {
  constexpr double kPauseMax = 30;
  for (double pause = 0.5;; pause = std::min(2 * pause, kPauseMax)) {
    PgOptions options;
    options.query_seconds = kQuerySeconds;
    options.settings = kWorkerSettings;
    Result<PgConnection> opened = PgConnection::connect(flags.database, options);
    Status status = opened.status();
    if (status.ok()) status = check_queue(opened.value());
    if (status.ok()) return opened;
    if (status.code() != Code::kIoError) return status;
    log_warning(std::string(status.message()) + "; the next try is in " + format_seconds(pause));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

// The routes of a worker: how it is, and its metrics. They answer before the model is there, too.
Result<std::optional<LoadingServer>> open_health(const WorkFlags& flags) {
  if (flags.health_port < 0) return std::optional<LoadingServer>();
  ServeFlags serve;
  serve.host = flags.health_host;
  serve.port = flags.health_port;
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<HttpListener> listeners, open_listeners(serve));
  SPILLWAY_ASSIGN_OR_RETURN(LoadingServer server,
                            LoadingServer::start(serve, std::move(listeners)));
  log_info(server.server->url() + "/health answers 503 until the model is there.");
  return std::optional<LoadingServer>(std::move(server));
}

// The workload of the job that it will begin with; of a typical one when there is none yet.
std::vector<RequestGroup> expected_workload(PgConnection& connection, const ApiContext& context,
                                            bool shares_beginnings) {
  constexpr int64_t kLines = 500;
  const RequestGroup typical = {.prompt_tokens = 512, .new_tokens = 128, .count = 0};
  const Result<QueueSample> queue = sample_queue(connection, context.model_names, kLines);
  if (!queue.ok() || queue->rows == 0) return {typical};
  WorkloadSample sample(context, shares_beginnings);
  for (const std::string& line : queue->lines) {
    InputLine text;
    text.text = line;
    sample.add(text, queue->seed);
  }
  std::vector<RequestGroup> groups = sample.groups(queue->rows);
  return groups.empty() ? std::vector<RequestGroup>{typical} : groups;
}

// Settings that change answers, without those that are the job's or the plan's, in one text.
std::string settings_text(const JournalHead& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    const bool elsewhere =
        name == "seed" || name == "format" || name == "kv-format" || name == "device";
    const bool plain = value == "default" || (name == "kv-sink" && value == "0") ||
                       (name == "kv-ratio-of" && value == "total");
    if (!elsewhere && !plain) text += ", " + name + " " + value;
  }
  return text;
}

JournalHead with_seed(JournalHead settings, uint64_t seed) {
  for (auto& [name, value] : settings) {
    if (name == "seed") value = std::to_string(seed);
  }
  return settings;
}

QueueWorker worker_of(const WorkFlags& flags, const WorkSetup& setup, const ServedModel& model,
                      const std::string& source_identity) {
  QueueWorker worker;
  worker.id = random_id();
  worker.name = flags.name.empty() ? default_name() : flags.name;
  worker.models = model.context.model_names;
  worker.identity = portable_identity(model.identity, setup.model) + settings_text(setup.settings);
  worker.format = model.format;
  worker.kv_format = model.kv_format;
  worker.kv_rule = setup.kv_rule;
  worker.lease_seconds = flags.lease_seconds;
  worker.run_id = [settings = setup.settings, source_identity](const std::string& input_hash,
                                                               uint64_t seed) {
    return run_id_of(batch_head_of(input_hash, source_identity, with_seed(settings, seed)));
  };
  return worker;
}

// Enough rows that the block is full while others are claimed, and that prompts go into sweeps a
// few at a time. More would only be kept from other workers.
int64_t rows_at_once(const ServedModel& model) {
  constexpr int64_t kBlocks = 3;
  return kBlocks * model.block + (model.block > 0 ? 8 : 0);
}

// A line now and then, while something happens.
class ProgressLine {
 public:
  void show(const BatchProgress& now, const QueueRows& rows) {
    const double seconds = now.seconds - shown_.seconds;
    if (seconds < kShowSeconds || now.generated_tokens_now == shown_.generated_tokens_now) return;
    const auto tokens = static_cast<double>(now.generated_tokens_now - shown_.generated_tokens_now);
    log_info(std::to_string(now.lines_done) + " rows done, " + std::to_string(now.lines_failed) +
             " of them failed; " + format_rate(tokens / seconds) + " tokens/s" +
             (rows.away() ? "; the database is away" : ""));
    shown_ = now;
  }

 private:
  BatchProgress shown_;
};

struct State {
  std::string model;
  WorkFlags work;
  EngineFlags engine;
};

void add_work_flags(Settings& settings, WorkFlags* flags) {
  settings.group("Work");
  settings.add(database_setting(&flags->database));
  settings.add_switch("until-done", &flags->until_done,
                      "end when no job that it may answer has rows left, instead of waiting for "
                      "more");
  settings.add_texts("served-model-name", &flags->served_model_names, "NAME",
                     "names of jobs' --model that it takes; the first is the one in answers");
  settings.add_text(
      "worker-name", &flags->name, "NAME",
      "what `spillway queue workers` calls it; default: the host's name and a number");
  settings.add_real("lease-seconds", &flags->lease_seconds, 1, 86'400,
                    "others take its rows when it was not heard of for so long");
  settings.add_real("drain-seconds", &flags->drain_seconds, 0, 86'400,
                    "time for rows in the block after SIGTERM or Ctrl-C; the others go back to "
                    "the queue");
  settings.add_integer("answers-bytes-max", &flags->answers_bytes_max, 1, int64_t{1} << 40,
                       "memory of --host-memory for prompts and answers in flight");
  settings.add_integer("health-port", &flags->health_port, -1, 65'535,
                       "answer GET /health, /metrics and /version on this port; 0: any free one; "
                       "-1: none");
  settings.add_text("health-host", &flags->health_host, "HOST", "the address for --health-port");
}

}  // namespace

Status validate(const WorkFlags& flags) {
  if (flags.database.empty()) {
    return invalid_argument("--database is missing (or the variable SPILLWAY_DATABASE)");
  }
  for (const std::string& name : flags.served_model_names) {
    if (name.empty()) return invalid_argument("--served-model-name: a name is empty");
  }
  return {};
}

Status run_work(const WorkFlags& flags, const WorkSetup& setup) {
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<LoadingServer> health, open_health(flags));
  std::optional<InterruptGuard> guard;
  guard.emplace("spillway work: stopped before it began; nothing was claimed.\n",
                InterruptGuard::First::kEnds);
  SPILLWAY_ASSIGN_OR_RETURN(PgConnection connection, connect(flags));
  const auto named = [&](ApiContext context) {
    if (!flags.served_model_names.empty()) context.model_names = flags.served_model_names;
    return context;
  };
  OpenFor purpose;
  std::string source_identity;
  {
    SPILLWAY_ASSIGN_OR_RETURN(const ServedModel source,
                              setup.open({.tokenizer_only = true, .workload = {}}));
    source_identity = source.identity;
    purpose.workload =
        expected_workload(connection, named(source.context), setup.shares_beginnings);
  }
  purpose.requests = {.body_bytes_max = 0,
                      .answers_bytes_max = static_cast<uint64_t>(flags.answers_bytes_max)};
  SPILLWAY_ASSIGN_OR_RETURN(ServedModel model, setup.open(purpose));
  model.context = named(model.context);

  // Before the first row, so that no signal is lost.
  guard.reset();
  guard.emplace("\nspillway work: ended at once; others take its rows when its lease is over.\n");
  ApiService api(*model.scheduler, model.context, model.scheduler->queue_max());
  api.plan = {model.tier_bytes, model.predicted_tokens_per_second};
  api.plan_text = model.plan;
  if (health) {
    api.http_counts = health->counts;
    health->server->serve({}, make_state_router(api, health->access));
  }
  const QueueWorker worker = worker_of(flags, setup, model, source_identity);
  QueueRowsOptions options;
  options.url = flags.database;
  options.until_done = flags.until_done;
  options.connection.query_seconds = kQuerySeconds;
  options.connection.settings = kWorkerSettings;
  const std::string place = connection.place();
  QueueRows rows(std::move(connection), worker, model.context, options);
  log_info(worker.name + " answers jobs for " + worker.models.front() + " of " + place + " (" +
           worker.identity + ").");
  IgnoredNames ignored;
  ProgressLine line;
  BatchProgress progress;
  BatchJob job;
  job.ignored = &ignored;
  job.scheduler = model.scheduler;
  job.context = &model.context;
  job.answers_bytes_max = static_cast<uint64_t>(flags.answers_bytes_max);
  job.sequences_max = rows_at_once(model);
  job.grace_seconds = flags.drain_seconds;
  job.interrupted = [&] {
    if (guard->interrupted()) api.draining = true;
    return guard->interrupted();
  };
  job.show = [&](const BatchProgress& now) {
    progress = now;
    line.show(now, rows);
  };
  const Result<BatchProgress> done = run_rows(job, rows);
  if (done.ok()) progress = done.value();
  const bool healthy = model.scheduler->stats().healthy;
  const bool left =
      rows.close(healthy ? "" : "the engine died: " + std::string(done.status().message()));
  if (health) health->server->stop();
  if (!left) {
    log_warning(
        "The database could not be told: others take what is left of its rows when its "
        "lease of " +
        format_seconds(flags.lease_seconds) + " is over.");
  }
  if (const std::string text = ignored.text(); !text.empty()) log_warning(text + ".");
  const QueueRows::Calls& calls = rows.calls();
  const auto mean = [](double seconds, int64_t count) {
    return format_rate(count == 0 ? 0 : 1000 * seconds / static_cast<double>(count)) + " ms";
  };
  const JournalCounts counts = rows.counts();
  say("Worked " + format_seconds(progress.seconds) + ": " + std::to_string(counts.finished) +
      " rows done, " + std::to_string(counts.failed) + " of them failed; " +
      std::to_string(counts.prompt_tokens) + " prompt tokens, " +
      std::to_string(counts.generated_tokens) + " generated. " + std::to_string(calls.claims) +
      " claims of " + mean(calls.claim_seconds, calls.claims) + ", " +
      std::to_string(calls.writes) + " writes of " + mean(calls.write_seconds, calls.writes) +
      " in the mean.");
  const Status status = done.status();
  return status.code() == Code::kCancelled ? Status() : status;
}

Command work_command(const OpenModel& open) {
  auto state = std::make_shared<State>();
  Command command;
  command.name = "work";
  command.summary = "answer jobs of a queue in PostgreSQL, beside other machines";
  command.description =
      "Loads the model and answers the rows of jobs that `spillway queue submit` put into a "
      "database, together with every other worker on it. It takes what it can answer as the job's "
      "first worker did: the same model, number formats and KV rule. Rows that it holds when it "
      "dies others take; while the database is away it goes on with those that it has. On SIGTERM "
      "or Ctrl-C it finishes what is in the block, gives the rest back and ends with status 0.";
  command.usage = "--database URL";
  command.arguments = {{"MODEL", kModelHelp, &state->model}};
  add_work_flags(command.settings, &state->work);
  add_engine_flags(command.settings, &state->engine);
  command.check = [state]() -> Status {
    SPILLWAY_RETURN_IF_ERROR(validate(state->work));
    return validate(state->engine);
  };
  command.run = [state, open]() -> int {
    WorkSetup setup;
    setup.shares_beginnings = state->engine.prefix_cache_bytes.value_or(1) > 0;
    setup.settings = result_settings(state->engine);
    setup.kv_rule = state->engine.kv_rule;
    setup.model = state->model;
    setup.open = [&](const OpenFor& purpose) {
      return as_input(open(state->model, state->engine, purpose));
    };
    return report("work", run_work(state->work, setup));
  };
  return command;
}

}  // namespace spillway
