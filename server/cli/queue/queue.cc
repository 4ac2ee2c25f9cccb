#include "server/cli/queue/queue.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/format.h"
#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "policy/kv_rule.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_progress.h"
#include "server/cli/batch/batch_output.h"
#include "server/cli/common/console.h"
#include "server/cli/common/interrupt.h"
#include "server/cli/queue/queue_report.h"
#include "server/log.h"
#include "server/queue/postgres.h"
#include "server/queue/queue_jobs.h"
#include "server/queue/queue_schema.h"

namespace spillway {
namespace {

const std::vector<std::string> kActions = {"submit", "status", "list",    "fetch", "cancel",
                                           "retry",  "delete", "workers", "init"};

// To remove a job of millions of rows takes longer than any other query.
constexpr double kQuerySeconds = 300;

bool needs_job(const std::string& action) {
  return action == "status" || action == "fetch" || action == "cancel" || action == "retry" ||
         action == "delete";
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// A connection that is opened again, and a call that is made again, while the database is away.
class PatientDatabase {
 public:
  PatientDatabase(const QueueFlags& flags, std::function<bool()> interrupted)
      : flags_(flags), interrupted_(std::move(interrupted)) {}

  // Calls `act` with a connection until it does not say kIoError.
  Status call(const std::function<Status(PgConnection&)>& act) {
    constexpr double kPauseMax = 10;
    const double until = steady_seconds() + static_cast<double>(flags_.retry_seconds);
    for (double pause = 0.5;; pause = std::min(2 * pause, kPauseMax)) {
      const Status status = once(act);
      const double left = until - steady_seconds();
      if (status.code() != Code::kIoError || left <= 0) return status;
      log_warning(std::string(status.message()) + "; trying again for " + format_seconds(left));
      SPILLWAY_RETURN_IF_ERROR(wait(std::min(pause, left)));
    }
  }

  Status wait(double seconds) const {
    const double until = steady_seconds() + seconds;
    while (!interrupted_()) {
      const double left = until - steady_seconds();
      if (left <= 0) return {};
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.1)));
    }
    return {Code::kCancelled, "interrupted"};
  }

 private:
  Status once(const std::function<Status(PgConnection&)>& act) {
    if (!connection_ || connection_->broken()) {
      connection_.reset();
      PgOptions options;
      options.stop = interrupted_;
      options.query_seconds = kQuerySeconds;
      SPILLWAY_ASSIGN_OR_RETURN(PgConnection opened,
                                PgConnection::connect(flags_.database, options));
      const bool makes_tables = flags_.action == "submit" || flags_.action == "init";
      SPILLWAY_RETURN_IF_ERROR(makes_tables ? migrate_queue(opened) : check_queue(opened));
      connection_ = std::move(opened);
    }
    return act(*connection_);
  }

  const QueueFlags& flags_;
  const std::function<bool()> interrupted_;
  std::optional<PgConnection> connection_;
};

std::string random_nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) nonce += std::to_string(random()) + " ";
  return nonce;
}

Status submit(const QueueFlags& flags, PatientDatabase& database) {
  JobSpec spec;
  spec.name = std::filesystem::path(flags.input).filename().string();
  spec.model = flags.model;
  spec.format = flags.format;
  spec.kv_format = flags.kv_format;
  spec.kv_rule = flags.kv_rule;
  spec.seed = flags.seed;
  spec.priority = flags.priority;
  spec.attempts_max = flags.attempts;
  spec.deadline_seconds = flags.deadline_seconds;
  if (flags.force) spec.nonce = random_nonce();
  SubmittedJob job;
  SPILLWAY_RETURN_IF_ERROR(database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(BatchInput input, BatchInput::open(flags.input));
    SPILLWAY_ASSIGN_OR_RETURN(job, submit_job(connection, spec, input, {}));
    return {};
  }));
  if (job.existed) {
    say("This file is job " + std::to_string(job.id) +
        " already, with the same model and settings; nothing was added (--force makes a job of "
        "its own).");
  } else {
    say(flags.input + " is job " + std::to_string(job.id) + " with " + std::to_string(job.rows) +
        " rows. `spillway work` with a model of the name " + flags.model + " answers it.");
  }
  print(std::to_string(job.id) + "\n");
  return {};
}

// Waits until the job has ended.
Status await_end(const QueueFlags& flags, PatientDatabase& database) {
  ProgressDisplay display(progress_kind(flags.progress, STDERR_FILENO), stderr);
  const double began = steady_seconds();
  std::optional<JobStatus> first;
  BatchProgress progress;
  for (double pause = 0.2;; pause = std::min(2 * pause, 2.0)) {
    JobStatus now;
    Status status = database.call([&](PgConnection& connection) -> Status {
      SPILLWAY_ASSIGN_OR_RETURN(now, job_status(connection, *flags.job));
      return {};
    });
    if (status.ok()) {
      if (!first) first = now;
      progress.lines_total = now.rows;
      progress.lines_done = now.finished;
      progress.lines_failed = now.failed;
      progress.lines_before = first->finished;
      progress.prompt_tokens = now.prompt_tokens;
      progress.generated_tokens = now.generated_tokens;
      progress.generated_tokens_now = now.generated_tokens - first->generated_tokens;
      progress.seconds = steady_seconds() - began;
      if (now.final()) break;
      display.update(progress);
      status = database.wait(pause);
    }
    if (!status.ok()) {
      display.finish(progress, "interrupted");
      return status;
    }
  }
  display.finish(progress, "done");
  return {};
}

Status fetch(const QueueFlags& flags, PatientDatabase& database) {
  const std::string target = output_target(flags.output);
  SPILLWAY_RETURN_IF_ERROR(check_output(target, ""));
  if (std::filesystem::exists(flags.output) && !flags.overwrite) {
    return invalid_argument(flags.output +
                            " exists; choose another --output, or --overwrite to replace it");
  }
  if (flags.wait) SPILLWAY_RETURN_IF_ERROR(await_end(flags, database));
  JobStatus job;
  SPILLWAY_RETURN_IF_ERROR(database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_RETURN_IF_ERROR(
        write_lines(target, "job-" + std::to_string(*flags.job), [&](const AddLine& add) {
          return fetch_job(connection, *flags.job, [&](std::string_view line) -> Status {
            const Status added = add(line);
            if (added.code() != Code::kIoError) return added;
            return {Code::kCapacity, std::string(added.message())};  // Another try would not help.
          });
        }));
    SPILLWAY_ASSIGN_OR_RETURN(job, job_status(connection, *flags.job));
    return {};
  }));
  say("Job " + std::to_string(job.id) + " is " + job.state + ": " +
      std::to_string(job.finished - job.failed) + " of " + std::to_string(job.rows) +
      " rows completed, " + std::to_string(job.failed) + " failed, " +
      std::to_string(job.rows - job.finished) + " did not run; " +
      std::to_string(job.prompt_tokens) + " prompt tokens, " +
      std::to_string(job.generated_tokens) + " generated.");
  if (job.failed > 0 || job.finished < job.rows) {
    say("Rows that failed or did not run say why in their \"error\".");
  }
  say("Output: " + flags.output);
  if (job.state == "done") return {};
  return {Code::kIoError, "job " + std::to_string(job.id) + " is " + job.state +
                              ": the rows that did not run are errors in the output"};
}

Status show_job(const QueueFlags& flags, PatientDatabase& database) {
  return database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(const JobStatus job, job_status(connection, *flags.job));
    print(flags.json ? json_of(job) : text_of(job));
    return {};
  });
}

Status show_jobs(const QueueFlags& flags, PatientDatabase& database) {
  return database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<JobStatus> jobs, list_jobs(connection));
    print(flags.json ? json_of(jobs) : text_of(jobs));
    return {};
  });
}

Status show_workers(const QueueFlags& flags, PatientDatabase& database) {
  return database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<WorkerStatus> workers, list_workers(connection));
    print(flags.json ? json_of(workers) : text_of(workers));
    return {};
  });
}

Status retry(const QueueFlags& flags, PatientDatabase& database) {
  int64_t rows = 0;
  SPILLWAY_RETURN_IF_ERROR(database.call([&](PgConnection& connection) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(rows, retry_job(connection, *flags.job));
    return {};
  }));
  say(rows == 0
          ? "No row of job " + std::to_string(*flags.job) + " was set aside."
          : std::to_string(rows) + " rows of job " + std::to_string(*flags.job) + " run again.");
  return {};
}

// What a worker has to have: refused where none can.
Setting demand(std::string name, std::string meaning, std::string* field, std::string help,
               bool (*exists)(const std::string&)) {
  Setting setting;
  setting.name = std::move(name);
  setting.meaning = std::move(meaning);
  setting.help = std::move(help);
  setting.assign = [field, exists, names = setting.meaning](const std::string& text) -> Status {
    if (!exists(text)) return invalid_argument(in_quotes(text) + " is not one of " + names);
    *field = text;
    return {};
  };
  return setting;
}

// A name of --format, or several, as `queue workers` shows those of files that have others.
bool are_formats(const std::string& text) {
  constexpr std::string_view kAnd = " and ";
  size_t at = 0;
  for (size_t end = text.find(kAnd); end != std::string::npos; end = text.find(kAnd, at)) {
    if (!format_of_name(text.substr(at, end - at))) return false;
    at = end + kAnd.size();
  }
  return format_of_name(text.substr(at)).has_value();
}

bool is_kv_format(const std::string& text) {
  const auto format = format_of_name(text);
  return format && format_traits(*format).kv_cache;
}

bool has_password(const std::string& url) {
  const size_t user = url.find("://");
  const size_t host = url.find('@');
  const bool in_front = user != std::string::npos && host != std::string::npos && user < host &&
                        url.substr(user + 3, host - user - 3).find(':') != std::string::npos;
  return in_front || url.find("password=") != std::string::npos;
}

void add_flags(Settings& settings, QueueFlags* flags) {
  settings.group("Queue");
  settings.add(database_setting(&flags->database));
  Setting job;
  job.name = "job";
  job.meaning = "ID";
  job.help = "the job, as submit printed it";
  job.assign = [flags](const std::string& text) -> Status {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || id <= 0) {
      return invalid_argument(in_quotes(text) + " is no job's id, such as 12");
    }
    flags->job = id;
    return {};
  };
  settings.add(std::move(job));
  settings.add_switch("json", &flags->json, "status, list, workers: print JSON");
  settings.add_integer("retry-seconds", &flags->retry_seconds, 0, 31'536'000,
                       "how long to try again while the database cannot be reached");
  settings.group("submit");
  settings.add_text("input", &flags->input, "FILE",
                    "JSON Lines, as for `spillway batch`: OpenAI batch lines, or bodies");
  settings.add_text("model", &flags->model, "NAME",
                    "the model's name, as its workers have it (the name of its folder or file, or "
                    "their --served-model-name)");
  settings.add(demand("format", format_names("|"), &flags->format,
                      "only workers whose weights have this format may take it", are_formats));
  settings.add(demand("kv-format", format_names("|", {}, true), &flags->kv_format,
                      "likewise for the format of their KV cache", is_kv_format));
  settings.add(demand("kv-rule", "full|h2o|window|random|snap", &flags->kv_rule,
                      "likewise for their KV rule",
                      [](const std::string& text) { return kv_rule_of_name(text).has_value(); }));
  settings.add_seed("seed", &flags->seed, "of samples of rows that name none");
  settings.add_integer("priority", &flags->priority, -1'000'000, 1'000'000,
                       "jobs with a lower one go first");
  Setting deadline;
  deadline.name = "deadline";
  deadline.meaning = "AGE";
  deadline.help = "rows that have not run after so long never do: 12h, 30d (or 30), 2w";
  deadline.assign = [flags](const std::string& text) -> Status {
    SPILLWAY_ASSIGN_OR_RETURN(flags->deadline_seconds, parse_age(text));
    return {};
  };
  settings.add(std::move(deadline));
  settings.add_integer("attempts", &flags->attempts, 3, 1000,
                       "tries of rows whose workers vanish, or whose machines fail them");
  settings.add_switch("force", &flags->force,
                      "make a new job even where the same file is one already");
  settings.group("fetch");
  settings.add_text("output", &flags->output, "FILE",
                    "one line per line of the input, in its order");
  settings.add_switch("overwrite", &flags->overwrite, "replace an OUTPUT that is there already");
  settings.add_switch("wait", &flags->wait, "wait until the job has ended");
  settings.add_choice("progress", &flags->progress, {"auto", "plain", "json", "none"},
                      "what stderr shows meanwhile");
}

}  // namespace

Setting database_setting(std::string* field) {
  Setting setting;
  setting.name = "database";
  setting.meaning = "URL";
  setting.help =
      "the PostgreSQL database: postgresql://USER@HOST:PORT/NAME, or any connection string of "
      "libpq; a password is better kept in PGPASSWORD or ~/.pgpass, where ps does not show it";
  setting.secret = true;
  setting.exposure = [](const std::string& url) {
    return has_password(url)
               ? "The password in --database shows in the list of processes (ps); use "
                 "SPILLWAY_DATABASE, PGPASSWORD or ~/.pgpass"
               : "";
  };
  setting.assign = [field](const std::string& text) -> Status {
    *field = text;
    return {};
  };
  return setting;
}

Status validate(const QueueFlags& flags) {
  if (std::find(kActions.begin(), kActions.end(), flags.action) == kActions.end()) {
    std::string all;
    for (const std::string& action : kActions) all += (all.empty() ? "" : ", ") + action;
    return invalid_argument(in_quotes(flags.action) + " is none of " + all);
  }
  if (flags.database.empty()) {
    return invalid_argument("--database is missing (or the variable SPILLWAY_DATABASE)");
  }
  if (flags.action == "submit") {
    if (flags.input.empty()) return invalid_argument("--input is missing");
    if (flags.model.empty()) return invalid_argument("--model is missing");
  }
  if (needs_job(flags.action) && !flags.job) return invalid_argument("--job is missing");
  if (flags.action == "fetch" && flags.output.empty()) {
    return invalid_argument("--output is missing");
  }
  return {};
}

Status run_queue(const QueueFlags& flags) {
  const InterruptGuard guard;
  PatientDatabase database(flags, [&guard] { return guard.interrupted(); });
  const auto of_job = [&](Status (*act)(PgConnection&, int64_t), const char* done) -> Status {
    SPILLWAY_RETURN_IF_ERROR(
        database.call([&](PgConnection& connection) { return act(connection, *flags.job); }));
    say("Job " + std::to_string(*flags.job) + " " + done);
    return {};
  };
  if (flags.action == "submit") return submit(flags, database);
  if (flags.action == "status") return show_job(flags, database);
  if (flags.action == "list") return show_jobs(flags, database);
  if (flags.action == "workers") return show_workers(flags, database);
  if (flags.action == "fetch") return fetch(flags, database);
  if (flags.action == "retry") return retry(flags, database);
  if (flags.action == "cancel") {
    return of_job(cancel_job, "is cancelled, unless it was complete; fetch has what is done.");
  }
  if (flags.action == "delete") return of_job(delete_job, "is deleted, with its results.");
  SPILLWAY_RETURN_IF_ERROR(database.call([](PgConnection&) { return Status(); }));
  say("The queue's tables are there.");
  return {};
}

Command queue_command() {
  auto flags = std::make_shared<QueueFlags>();
  Command command;
  command.name = "queue";
  command.summary = "share a file of requests among many machines, through PostgreSQL";
  command.description =
      "`queue submit` puts a file of requests into a database, as a job; any number of `spillway "
      "work MODEL` on as many machines answer its rows; `queue fetch` writes the results, as "
      "`spillway batch` would have. Every row has exactly one result, whatever machine dies: what "
      "a worker held that vanished, others take. `queue status` says how far a job is; `queue "
      "list` shows all, `queue workers` who works; `queue cancel` ends a job, and what is done can "
      "be fetched; `queue retry` runs rows again that several machines failed; `queue delete` "
      "removes a job that has ended. The same file is one job, however often it is submitted.";
  command.usage = "--database URL";
  command.arguments = {
      {"ACTION",
       "submit, status, list, fetch, cancel, retry, delete, workers, or init, which "
       "makes the tables (as submit does)",
       &flags->action, false, kActions}};
  add_flags(command.settings, flags.get());
  command.check = [flags] { return validate(*flags); };
  command.run = [flags] { return report("queue", run_queue(*flags)); };
  return command;
}

}  // namespace spillway
