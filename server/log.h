// The one log of the program: a line on stderr with its time and level, as text or as JSON,
//
//   [2026-05-04 17:03:21.512] [error] /v1/completions: read model.spill at 4096: Input/output error
//   {"time":"2026-05-04T15:03:21.512Z","level":"error","message":"/v1/completions: read ..."}
//
// stdout is reserved for a command's own output. Warnings and errors are limited (log_limit.h).
// Any thread; never fails.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace spillway {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };  // Local time; UTC

// How lines are written from now on, and the least level of them; until then as text, from kInfo
// on. What was left out and not told is forgotten.
void set_log(LogFormat format, LogLevel least);

// Whether lines of this level are written: for those that take work to put together.
bool logs(LogLevel level);

void log_info(std::string_view text);
void log_warning(std::string_view text);
void log_error(std::string_view text);

// A value beside a line's text: ` name=value`, or a member of the JSON object. Text is quoted and
// escaped where it has blanks or bytes that a terminal would obey; numbers have six decimals at
// most.
struct LogField {
  std::string_view name;
  std::variant<std::string_view, int64_t, double, bool> value;
};
void log_line(LogLevel level, std::string_view text, std::span<const LogField> fields);

}  // namespace spillway
