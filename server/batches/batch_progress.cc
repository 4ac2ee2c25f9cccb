#include "server/batches/batch_progress.h"

#include <unistd.h>

#include <cinttypes>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/units.h"

namespace spillway {

namespace {

std::chrono::milliseconds interval(ProgressKind kind) {
  switch (kind) {
    case ProgressKind::kTerminal:
      return std::chrono::milliseconds(200);
    case ProgressKind::kJson:
      return std::chrono::seconds(1);
    case ProgressKind::kPlain:
    case ProgressKind::kNone:
      break;
  }
  return std::chrono::seconds(5);
}

// 12345678 as "12,345,678".
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

}  // namespace

double BatchProgress::tokens_per_second() const {
  return seconds > 0 ? static_cast<double>(generated_tokens_now) / seconds : 0;
}

double BatchProgress::seconds_left() const {
  const int64_t now = lines_done - lines_before;
  if (lines_done >= lines_total) return 0;
  if (now <= 0) return -1;
  return seconds * static_cast<double>(lines_total - lines_done) / static_cast<double>(now);
}

ProgressKind progress_kind(const std::string& name, int fd) {
  if (name == "none") return ProgressKind::kNone;
  if (name == "json") return ProgressKind::kJson;
  if (name == "plain") return ProgressKind::kPlain;
  SPILLWAY_CHECK(name == "auto");
  return ::isatty(fd) != 0 ? ProgressKind::kTerminal : ProgressKind::kPlain;
}

std::string progress_text(const BatchProgress& progress) {
  const int percent = progress.lines_total > 0
                          ? static_cast<int>(progress.lines_done * 100 / progress.lines_total)
                          : 100;
  char rate[32];
  std::snprintf(rate, sizeof(rate), "%.1f", progress.tokens_per_second());
  std::string text = grouped(progress.lines_done) + "/" + grouped(progress.lines_total) +
                     " lines (" + std::to_string(percent) + " %)";
  if (progress.lines_failed > 0) text += ", " + grouped(progress.lines_failed) + " failed";
  text += ", " + grouped(progress.generated_tokens) + " tokens, " + rate + " tokens/s";
  const double left = progress.seconds_left();
  if (left > 0) text += ", " + format_seconds(left) + " left";
  return text;
}

std::string progress_json(const BatchProgress& progress, const char* state) {
  nlohmann::ordered_json json = {{"state", state},
                                 {"lines_total", progress.lines_total},
                                 {"lines_done", progress.lines_done},
                                 {"lines_failed", progress.lines_failed},
                                 {"prompt_tokens", progress.prompt_tokens},
                                 {"cached_tokens", progress.cached_tokens},
                                 {"generated_tokens", progress.generated_tokens},
                                 {"tokens_per_second", progress.tokens_per_second()},
                                 {"seconds", progress.seconds}};
  const double left = progress.seconds_left();
  json["seconds_left"] = left < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(left);
  return json.dump();
}

void ProgressDisplay::update(const BatchProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (kind_ == ProgressKind::kNone || now - shown_ < interval(kind_)) return;
  shown_ = now;
  if (kind_ == ProgressKind::kTerminal) {
    // Return to the first column, write the text, and clear the rest of a longer one.
    std::fprintf(to_, "\r%s\x1b[K", progress_text(progress).c_str());
  } else if (kind_ == ProgressKind::kPlain) {
    std::fprintf(to_, "%s\n", progress_text(progress).c_str());
  } else {
    std::fprintf(to_, "%s\n", progress_json(progress, "running").c_str());
  }
  std::fflush(to_);
}

void ProgressDisplay::finish(const BatchProgress& progress, const char* state) {
  if (kind_ == ProgressKind::kTerminal) {
    std::fprintf(to_, "\r%s\x1b[K\n", progress_text(progress).c_str());
  } else if (kind_ == ProgressKind::kJson) {
    std::fprintf(to_, "%s\n", progress_json(progress, state).c_str());
  }
  std::fflush(to_);
}

}  // namespace spillway
