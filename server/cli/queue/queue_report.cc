#include "server/cli/queue/queue_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/units.h"
#include "server/cli/common/console.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

double tokens_per_second(const JobStatus& job) {
  return job.run_seconds > 0 ? static_cast<double>(job.generated_tokens) / job.run_seconds : 0;
}

// None: it cannot be said.
std::optional<double> seconds_left(const JobStatus& job) {
  if (job.finished == 0 || job.run_seconds <= 0) return std::nullopt;
  return job.run_seconds * static_cast<double>(job.rows - job.finished) /
         static_cast<double>(job.finished);
}

std::string rows_text(int64_t rows, const char* what) {
  return std::to_string(rows) + (rows == 1 ? " row " : " rows ") + what;
}

// Why a job does not go on, as far as that shows.
std::string trouble_of(const JobStatus& job) {
  if (job.final()) return "";
  if (job.workers == 0) {
    if (job.workers_else == 0)
      return "no worker is there: start `spillway work MODEL` on some machines";
    return "no worker may take it: " + std::to_string(job.workers_else) +
           " that are there have another model, or other formats or rules (spillway queue workers)";
  }
  return "";
}

Json to_json(const JobStatus& job) {
  Json json = {{"id", job.id},
               {"name", job.name},
               {"model", job.model},
               {"state", job.state},
               {"priority", job.priority},
               {"rows", job.rows},
               {"finished", job.finished},
               {"failed", job.failed},
               {"claimed", job.claimed},
               {"given_back", job.abandoned},
               {"set_aside", job.set_aside},
               {"prompt_tokens", job.prompt_tokens},
               {"generated_tokens", job.generated_tokens},
               {"tokens_per_second", tokens_per_second(job)},
               {"age_seconds", job.age_seconds},
               {"run_seconds", job.run_seconds},
               {"seconds_left", nullptr},
               {"deadline_in_seconds", nullptr},
               {"workers", job.workers},
               {"workers_else", job.workers_else},
               {"identity", job.identity},
               {"cause", job.cause}};
  if (!job.final()) {
    if (const auto left = seconds_left(job)) json["seconds_left"] = *left;
  }
  if (job.deadline_in_seconds) json["deadline_in_seconds"] = *job.deadline_in_seconds;
  return json;
}

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string text_of(const JobStatus& job) {
  std::string text = "job " + std::to_string(job.id) + ": " + job.state + "\n";
  const auto add = [&](const char* name, const std::string& value) {
    text += text_line("  %-10s %s", name, value.c_str());
  };
  add("input", job.name);
  add("model", job.model);
  std::string rows = std::to_string(job.finished) + " of " + std::to_string(job.rows) + " done, " +
                     std::to_string(job.failed) + " of them failed";
  if (!job.final()) {
    if (job.claimed > 0) rows += "; " + std::to_string(job.claimed) + " in work";
    if (job.abandoned > 0) rows += "; " + std::to_string(job.abandoned) + " given back";
  } else if (job.finished < job.rows) {
    rows += "; " + rows_text(job.rows - job.finished, "did not run");
  }
  add("rows", rows);
  if (job.run_seconds > 0) {
    add("tokens", std::to_string(job.prompt_tokens) + " of prompts, " +
                      std::to_string(job.generated_tokens) + " generated, " +
                      format_rate(tokens_per_second(job)) + " tokens/s in " +
                      format_age(job.run_seconds));
  }
  if (!job.final()) {
    if (const auto left = seconds_left(job)) add("left", "about " + format_age(*left));
    if (job.deadline_in_seconds) {
      add("deadline", "in " + format_age(std::max(0.0, *job.deadline_in_seconds)));
    }
    add("workers", std::to_string(job.workers));
  }
  if (!job.identity.empty()) add("answers", job.identity);
  if (job.set_aside > 0) {
    add("set aside", rows_text(job.set_aside,
                               "failed on several machines, by no fault of their "
                               "own, last because of: ") +
                         job.cause + " (spillway queue retry runs them again)");
  }
  if (const std::string trouble = trouble_of(job); !trouble.empty()) add("waits", trouble);
  return text;
}

std::string text_of(const std::vector<JobStatus>& jobs) {
  if (jobs.empty()) return "There are no jobs.\n";
  std::string text = text_line("%6s  %-9s %12s %12s %8s  %-20s %s", "job", "state", "done", "rows",
                               "failed", "model", "input");
  for (const JobStatus& job : jobs) {
    text += text_line("%6lld  %-9s %12lld %12lld %8lld  %-20s %s", static_cast<long long>(job.id),
                      job.state.c_str(), static_cast<long long>(job.finished),
                      static_cast<long long>(job.rows), static_cast<long long>(job.failed),
                      job.model.c_str(), job.name.c_str());
  }
  return text;
}

std::string text_of(const std::vector<WorkerStatus>& workers) {
  if (workers.empty()) return "There are no workers.\n";
  std::string text =
      text_line("%-28s %-9s %12s  %-20s %s", "worker", "lease", "since", "model", "answers with");
  for (const WorkerStatus& worker : workers) {
    text += text_line("%-28s %-9s %12s  %-20s %s", worker.name.c_str(),
                      worker.expires_in_seconds > 0 ? "holds" : "is over",
                      format_age(worker.age_seconds).c_str(), worker.model.c_str(),
                      worker.identity.c_str());
  }
  return text;
}

std::string json_of(const JobStatus& job) {
  return dumped(to_json(job));
}

std::string json_of(const std::vector<JobStatus>& jobs) {
  Json list = Json::array();
  for (const JobStatus& job : jobs) list.push_back(to_json(job));
  return dumped(list);
}

std::string json_of(const std::vector<WorkerStatus>& workers) {
  Json list = Json::array();
  for (const WorkerStatus& worker : workers) {
    list.push_back({{"name", worker.name},
                    {"model", worker.model},
                    {"identity", worker.identity},
                    {"age_seconds", worker.age_seconds},
                    {"lease_seconds_left", worker.expires_in_seconds},
                    {"claims", worker.claims}});
  }
  return dumped(list);
}

}  // namespace spillway
