#include "server/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/clock.h"
#include "server/log_limit.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTextPattern = "[%Y-%m-%d %H:%M:%S.%e] [%^%l%$] %v";
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})";

spdlog::level::level_enum level_of(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<size_t>(level)];
}

// Within quotes; bytes that are not ASCII are escaped, and such that are no UTF-8 replaced.
std::string quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

bool plain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

struct ValueText {
  bool json;
  std::string operator()(std::string_view text) const {
    return json || !plain(text) ? quoted(text) : std::string(text);
  }
  std::string operator()(int64_t number) const { return std::to_string(number); }
  std::string operator()(double number) const {
    return Json(std::round(number * 1e6) / 1e6).dump();
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
};

// What the pattern has in the place of %v.
std::string payload(LogFormat format, std::string_view text, std::span<const LogField> fields) {
  const bool json = format == LogFormat::kJson;
  std::string line = json ? "\"message\":" + quoted(text) : std::string(text);
  for (const LogField& field : fields) {
    line += json ? ",\"" : " ";
    line += field.name;
    line += json ? "\":" : "=";
    line += std::visit(ValueText{json}, field.value);
  }
  return line;
}

class Log {
 public:
  Log() { set(LogFormat::kText, LogLevel::kInfo); }

  void set(LogFormat format, LogLevel least) {
    const std::lock_guard lock(mutex_);
    auto made = std::make_shared<spdlog::logger>(
        "spillway", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    const bool json = format == LogFormat::kJson;
    made->set_pattern(json ? kJsonPattern : kTextPattern,
                      json ? spdlog::pattern_time_type::utc : spdlog::pattern_time_type::local);
    made->flush_on(spdlog::level::trace);
    made->set_level(level_of(least));
    made->set_error_handler([](const std::string&) {});  // A failing log has nowhere to report to.
    logger_ = std::move(made);
    format_ = format;
    limit_ = {};
    least_ = least;
  }

  bool logs(LogLevel level) const { return level >= least_; }

  void line(LogLevel level, std::string_view text, std::span<const LogField> fields) {
    if (!logs(level)) return;
    try {
      limited_line(level, text, fields);
    } catch (const std::exception&) {
      // Out of memory: the line is lost.
    }
  }

 private:
  void limited_line(LogLevel level, std::string_view text, std::span<const LogField> fields) {
    const std::lock_guard lock(mutex_);
    const std::string line = payload(format_, text, fields);
    LogLimit::LeftOut left_out;
    if (level < LogLevel::kWarning) {
      left_out = limit_.tell(steady_seconds());
    } else if (!limit_.admits(line, steady_seconds(), &left_out)) {
      return;
    }
    if (left_out.repeats > 0) {
      write(LogLevel::kWarning,
            "The last warning or error came " + std::to_string(left_out.repeats) + " more times.");
    }
    if (left_out.others > 0) {
      write(LogLevel::kWarning, std::to_string(left_out.others) +
                                    " warnings and errors were left out, since there were more "
                                    "than " +
                                    std::to_string(kLogErrorsPerSecond) + " in a second.");
    }
    logger_->log(level_of(level), spdlog::string_view_t(line.data(), line.size()));
  }

  void write(LogLevel level, const std::string& text) {
    const std::string line = payload(format_, text, {});
    logger_->log(level_of(level), spdlog::string_view_t(line.data(), line.size()));
  }

  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_;
  LogFormat format_ = LogFormat::kText;
  LogLimit limit_;
  std::atomic<LogLevel> least_ = LogLevel::kInfo;
};

// Made with the first line, so that tests and main() need not set anything up.
Log& the_log() {
  static Log log;
  return log;
}

}  // namespace

void set_log(LogFormat format, LogLevel least) {
  the_log().set(format, least);
}

bool logs(LogLevel level) {
  return the_log().logs(level);
}

void log_info(std::string_view text) {
  the_log().line(LogLevel::kInfo, text, {});
}

void log_warning(std::string_view text) {
  the_log().line(LogLevel::kWarning, text, {});
}

void log_error(std::string_view text) {
  the_log().line(LogLevel::kError, text, {});
}

void log_line(LogLevel level, std::string_view text, std::span<const LogField> fields) {
  the_log().line(level, text, fields);
}

}  // namespace spillway
