#include "server/http/request_log.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "server/http/http_counts.h"
#include "server/log.h"

namespace spillway {

namespace {

constexpr std::string_view kPolled[] = {"/health", "/metrics"};
constexpr size_t kPathBytesMax = 256;

}  // namespace

void log_request(const RequestReport& report) {
  const bool polled =
      std::find(std::begin(kPolled), std::end(kPolled), report.path) != std::end(kPolled);
  const LogLevel level = polled ? LogLevel::kDebug : LogLevel::kInfo;
  if (!logs(level)) return;
  std::vector<LogField> fields = {{"id", std::string_view(report.id)}};
  const auto add_text = [&](std::string_view name, std::string_view text) {
    if (!text.empty()) fields.push_back({name, text});
  };
  add_text("key", report.key);
  add_text("client", report.client);
  add_text("method", report.method);
  add_text("path", std::string_view(report.path).substr(0, kPathBytesMax));
  fields.push_back({"status", int64_t{reported_status(report)}});
  add_text("error", report.error);
  if (!report.whole) fields.push_back({"cut_off", true});
  if (report.work) {
    const RequestWork& work = *report.work;
    fields.push_back({"prompt_tokens", work.prompt_tokens});
    fields.push_back({"cached_tokens", work.cached_tokens});
    fields.push_back({"generated_tokens", work.generated_tokens});
    fields.push_back({"queue_seconds", work.queue_seconds});
    if (work.first_token) {
      fields.push_back({"first_token_seconds", *work.first_token - report.began});
    }
  }
  fields.push_back({"seconds", report.seconds});
  if (report.work) add_text("finish_reason", report.work->finish_reason);
  log_line(level, "request", fields);
}

}  // namespace spillway
