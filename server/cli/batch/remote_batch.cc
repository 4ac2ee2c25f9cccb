#include "server/cli/batch/remote_batch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/quote.h"
#include "kernels/base/units.h"
#include "offload/io/file.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_progress.h"
#include "server/cli/batch/batch_output.h"
#include "server/cli/batch/merge_results.h"
#include "server/cli/common/console.h"
#include "server/cli/common/interrupt.h"
#include "server/client/batches_client.h"
#include "server/log.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kFaultsShown = 10;
constexpr uint64_t kKeyFileBytesMax = uint64_t{1} << 20;

// What a batch at a server takes; all other settings of the command are of this machine.
constexpr std::array<std::string_view, 12> kOfServer = {
    "server",        "api-key", "api-key-file", "batch-id",  "cancel",   "completion-window",
    "retry-seconds", "input",   "output",       "overwrite", "progress", "fail-on-errors"};
// Those that mean nothing without one. (A key may be there for `serve`.)
constexpr std::array<std::string_view, 4> kOfServerAlone = {"batch-id", "cancel",
                                                            "completion-window", "retry-seconds"};

template <size_t kCount>
bool among(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Setting client_key_setting(std::string* field) {
  Setting setting;
  setting.name = "api-key";
  setting.meaning = "KEY";
  setting.help =
      "with --server: the key that it asks for; in a variable or file it stays out of ps";
  setting.secret = true;
  setting.assign = [field](const std::string& text) -> Status {
    *field = text.substr(0, text.find(','));  // A variable may have all keys of a server.
    return {};
  };
  return setting;
}

Result<std::string> key_of(const RemoteBatchFlags& flags) {
  std::string key = flags.api_key;
  if (!flags.api_key_file.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(key, read_client_key(flags.api_key_file));
  }
  const bool visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (visible) return key;
  return invalid_argument("the API key has a byte that no header can carry");
}

// ---- One run ------------------------------------------------------------------------------------

// Files beside the output that are gone at the end, however it ends.
class Parts {
 public:
  explicit Parts(const std::string& base)
      : answers(base + ".answers.part"), errors(base + ".errors.part"), merged(base + ".tmp") {}
  ~Parts() {
    ::unlink(answers.c_str());
    ::unlink(errors.c_str());
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const std::string answers, errors, merged;
};

class RemoteRun {
 public:
  RemoteRun(const RemoteBatchFlags& flags, const RemoteBatchFiles& files, BatchesClient client)
      : flags_(flags), files_(files), client_(std::move(client)) {}

  // Makes the batch, or finds the one that is there.
  Result<RemoteBatch> begin();
  Result<RemoteBatch> watch(RemoteBatch batch, double poll_seconds);
  Result<RemoteBatchOutcome> fetch(const RemoteBatch& batch);

  // How to see the batch again; its id must be known.
  std::string again(const std::string& id) const {
    return "spillway batch --server " + client_.address().text + " --batch-id " + id;
  }

 private:
  const RemoteBatchFlags& flags_;
  const RemoteBatchFiles& files_;
  BatchesClient client_;
  const Clock::time_point began_ = Clock::now();
};

Result<RemoteBatch> RemoteRun::begin() {
  if (flags_.cancel) return client_.cancel(flags_.batch_id);
  if (!flags_.batch_id.empty()) return client_.retrieve(flags_.batch_id);
  SPILLWAY_ASSIGN_OR_RETURN(const std::string endpoint, endpoint_of(files_.input));
  std::string file;
  {
    ByteProgress sending("Sending " + files_.input);
    SPILLWAY_ASSIGN_OR_RETURN(
        file, client_.upload(files_.input,
                             [&](uint64_t done, uint64_t total) { sending.show(done, total); }));
  }
  SPILLWAY_ASSIGN_OR_RETURN(RemoteBatch batch,
                            client_.create(file, endpoint, flags_.completion_window));
  log_info("The server runs " + batch.id +
           "; it goes on when this command ends. To see it again: " + again(batch.id) +
           " --output " + files_.output);
  return batch;
}

Result<RemoteBatch> RemoteRun::watch(RemoteBatch batch, double poll_seconds) {
  ProgressDisplay display(progress_kind(files_.progress, STDERR_FILENO), stderr);
  const int64_t done_before = batch.completed + batch.failed;
  const int64_t tokens_before = batch.generated_tokens;
  BatchProgress progress;
  std::string detail;
  double pause = std::min(0.2, poll_seconds);
  while (true) {
    progress.lines_total = batch.total;
    progress.lines_done = batch.completed + batch.failed;
    progress.lines_failed = batch.failed;
    progress.lines_before = done_before;
    progress.prompt_tokens = batch.prompt_tokens;
    progress.generated_tokens = batch.generated_tokens;
    progress.generated_tokens_now = batch.generated_tokens - tokens_before;
    progress.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    if (batch.ended()) break;
    if (batch.total > 0) display.update(progress);
    if (batch.detail != detail && !batch.detail.empty())
      log_info("The batch waits: " + batch.detail);
    detail = batch.detail;
    Status status = client_.pause(pause);
    pause = std::min(2 * pause, poll_seconds);
    if (status.ok()) {
      Result<RemoteBatch> now = client_.retrieve(batch.id);
      status = now.status();
      if (status.ok()) batch = std::move(now).value();
    }
    if (!status.ok()) {
      display.finish(progress, "interrupted");
      return status;
    }
  }
  display.finish(progress, batch.status == "completed" ? "done" : "interrupted");
  return batch;
}

// Why nothing of a batch ran, with the first faults of its input.
Status refused_input(const RemoteBatch& batch) {
  for (size_t i = 0; i < std::min(kFaultsShown, batch.faults.size()); ++i) say(batch.faults[i]);
  if (batch.faults.size() > kFaultsShown) {
    say("... and " + std::to_string(batch.faults.size() - kFaultsShown) + " more");
  }
  return invalid_argument("the server refuses the input of " + batch.id +
                          (batch.faults.empty() ? "" : ", see above") + "; nothing of it ran");
}

Result<RemoteBatchOutcome> RemoteRun::fetch(const RemoteBatch& batch) {
  if (batch.status == "failed") return refused_input(batch);
  if (batch.output_file.empty() && batch.error_file.empty()) {
    return Status(Code::kIoError, batch.id + " is " + batch.status + " and has no results");
  }
  const std::string target = output_target(files_.output);
  const Parts parts(target + "." + batch.id);
  ByteProgress fetching("Fetching");
  uint64_t before = 0;
  const auto get = [&](const std::string& file, const std::string& path) -> Result<std::string> {
    if (file.empty()) return std::string();
    uint64_t got = 0;
    SPILLWAY_RETURN_IF_ERROR(client_.download(file, path, [&](uint64_t bytes) {
      got = bytes;
      fetching.show(before + bytes, 0);
    }));
    before += got;
    return path;
  };
  SPILLWAY_ASSIGN_OR_RETURN(const std::string answers, get(batch.output_file, parts.answers));
  SPILLWAY_ASSIGN_OR_RETURN(const std::string errors, get(batch.error_file, parts.errors));
  SPILLWAY_ASSIGN_OR_RETURN(const MergedResults merged,
                            merge_results(answers, errors, parts.merged, target));
  say("Done in " + format_seconds(std::chrono::duration<double>(Clock::now() - began_).count()) +
      ": " + std::to_string(merged.answers) + " of " +
      std::to_string(merged.answers + merged.errors) + " lines completed, " +
      std::to_string(merged.errors) + " failed; " + std::to_string(batch.prompt_tokens) +
      " prompt tokens, " + std::to_string(batch.generated_tokens) + " generated.");
  if (merged.errors > 0) say("Lines that failed say why in their \"error\".");
  say("Output: " + files_.output);
  if (batch.status == "completed" || flags_.cancel) return RemoteBatchOutcome{merged.errors};
  return Status(Code::kIoError, batch.id + " is " + batch.status +
                                    ": the lines that did not run are errors in the output");
}

// What a person is told who ends the command, or whom the network ends it for.
Status with_advice(const Status& status, const std::string& advice) {
  return {status.code(), std::string(status.message()) + ": " + advice};
}

}  // namespace

void add_remote_batch_flags(Settings& settings, RemoteBatchFlags* flags) {
  settings.group("Batch at a server");
  settings.add_text("server", &flags->server, "URL",
                    "let the server at this address run it, such as http://gpu.example.org:8000 or "
                    "unix:/run/spillway.sock; takes no MODEL");
  settings.add(client_key_setting(&flags->api_key));
  settings.add_text("api-key-file", &flags->api_key_file, "FILE",
                    "with --server: a file with the key that it asks for");
  settings.add_text("batch-id", &flags->batch_id, "ID",
                    "with --server: watch this batch, which is there already, and fetch its "
                    "results; takes no --input");
  settings.add_switch("cancel", &flags->cancel,
                      "with --batch-id: cancel it; with --output fetch what it has done");
  settings.add_text("completion-window", &flags->completion_window, "TIME",
                    "with --server: the batch expires after so long: 24h, 90m, 7d; none: never. "
                    "Servers other than Spillway's may want 24h");
  settings.add_integer("retry-seconds", &flags->retry_seconds, 0, 31'536'000,
                       "with --server: how long to try again while it cannot be reached, or "
                       "answers 429 or 503");
}

Status check_remote_batch_given(const Settings& given, const RemoteBatchFlags& flags) {
  for (const Setting& setting : given.all()) {
    // Variables and files may be there for other commands.
    if (setting.source != SettingSource::kFlag) continue;
    if (flags.server.empty() && among(kOfServerAlone, setting.name)) {
      return invalid_argument("--" + setting.name + " is of a batch at a server; add --server URL");
    }
    if (flags.server.empty() || among(kOfServer, setting.name)) continue;
    if (setting.name == "resume") {
      return invalid_argument(
          "--resume is of a batch on this machine; with --server use --batch-id ID, which the "
          "command said when it began");
    }
    return invalid_argument("--" + setting.name +
                            " is of a batch on this machine; leave it out with --server, where the "
                            "server decides");
  }
  return {};
}

Status check_remote_batch(const RemoteBatchFlags& flags, const RemoteBatchFiles& files) {
  SPILLWAY_RETURN_IF_ERROR(parse_server_address(flags.server).status().at("--server"));
  if (!flags.batch_id.empty() && (!is_safe_name(flags.batch_id) || flags.batch_id[0] == '.')) {
    return invalid_argument("--batch-id: " + in_quotes(flags.batch_id) +
                            " is no id of a batch, such as batch_0123abcd");
  }
  if (flags.cancel && flags.batch_id.empty()) {
    return invalid_argument("--cancel needs --batch-id ID");
  }
  if (!flags.batch_id.empty() && !files.input.empty()) {
    return invalid_argument("--input is of a new batch; leave it out with --batch-id");
  }
  if (flags.batch_id.empty() && files.input.empty()) {
    return invalid_argument(
        "--input is missing; or --batch-id ID of a batch that is there already");
  }
  if (files.output.empty() && !flags.cancel) return invalid_argument("--output is missing");
  return {};
}

Result<RemoteBatchOutcome> run_remote_batch(const RemoteBatchFlags& flags,
                                            const RemoteBatchFiles& files, double poll_seconds) {
  SPILLWAY_ASSIGN_OR_RETURN(ServerAddress address, parse_server_address(flags.server));
  HttpCaller::Options calls;
  SPILLWAY_ASSIGN_OR_RETURN(calls.api_key, key_of(flags));
  if (!files.output.empty()) {
    SPILLWAY_RETURN_IF_ERROR(check_output(output_target(files.output), files.input));
    if (std::filesystem::exists(files.output) && !files.overwrite) {
      return invalid_argument(files.output +
                              " exists; choose another --output, or --overwrite to replace it");
    }
  }
  if (!calls.api_key.empty() && !address.local()) {
    log_warning("The API key and the requests go to " + address.host +
                " as they are, without TLS: everyone on the way can read them.");
  }
  const InterruptGuard guard(
      "\nspillway batch: ended at once; a batch that has begun goes on at the server.\n");
  calls.interrupted = [&guard] { return guard.interrupted(); };
  PatientCaller::Options patience;
  patience.patience_seconds = static_cast<double>(flags.retry_seconds);
  patience.say = [](const std::string& text) { log_warning(text); };
  RemoteRun run(
      flags, files,
      BatchesClient(PatientCaller(HttpCaller(std::move(address), std::move(calls)), patience)));
  Result<RemoteBatch> begun = run.begin();
  if (!begun.ok()) {
    const bool new_one = flags.batch_id.empty() && begun.status().code() == Code::kCancelled;
    return new_one ? with_advice(begun.status(), "no batch has begun") : begun.status();
  }
  const std::string id = begun->id;
  if (flags.cancel && files.output.empty()) {
    say(id + " is " + begun->status + ". What it has done: " + run.again(id) + " --output FILE");
    return RemoteBatchOutcome{};
  }
  const std::string output = " --output " + files.output;
  Result<RemoteBatch> ended = run.watch(std::move(begun).value(), poll_seconds);
  const auto is_passing = [](const Status& status) {
    return status.code() == Code::kCancelled || status.code() == Code::kIoError;
  };
  if (!ended.ok()) {
    if (!is_passing(ended.status())) return ended.status();
    return with_advice(ended.status(),
                       "the batch goes on at the server. To see it again: " + run.again(id) +
                           output + "; to end it: " + run.again(id) + " --cancel");
  }
  Result<RemoteBatchOutcome> outcome = run.fetch(ended.value());
  if (outcome.ok() || !is_passing(outcome.status()) || ended->status != "completed") return outcome;
  return with_advice(outcome.status(), "the results are safe at the server. To fetch them: " +
                                           run.again(id) + output);
}

Result<std::string> endpoint_of(const std::string& input) {
  SPILLWAY_ASSIGN_OR_RETURN(BatchInput lines, BatchInput::open(input));
  InputLine line;
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, lines.next(&line));
  if (!found) return invalid_argument(input + " has no lines");
  const auto json = nlohmann::json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  const bool whole = json.is_object() && json.contains("url") && json["url"].is_string() &&
                     json.contains("body") && json.contains("custom_id");
  if (!whole) {
    return invalid_argument(
        input + ": line " + std::to_string(line.number) +
        " is no line of OpenAI's Batch API, which a server takes: {\"custom_id\": \"q1\", "
        "\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {...}}");
  }
  return json["url"].get<std::string>();
}

Result<std::string> read_client_key(const std::string& path) {
  const std::string place = "--api-key-file " + path;
  Result<std::string> text = read_small_file(path, kKeyFileBytesMax);
  if (!text.ok()) return text.status().at(place);
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    at = end + 1;
    line.erase(0, line.find_first_not_of(" \t\r"));
    if (line.empty() || line[0] == '#') continue;
    return line.substr(0, line.find_first_of(" \t\r"));
  }
  return invalid_argument(place + ": has no key");
}

}  // namespace spillway
